// Plans by problem: what a training step asks for again and again is made once.
#include <mutex>
#include <tuple>

#include "core/last_used.h"
#include "verbatim/schedule.h"

namespace verbatim {
namespace {

constexpr size_t kKept = 64;

struct Entry {
  Problem problem;
  Mask mask;
  PlanOptions options;
  std::shared_ptr<const Plan> plan;
  int64_t bytes;  // slices too, which the mask's other plans share

  bool answers(const Problem& p, const Mask& m, const PlanOptions& o) const {
    return std::tie(problem, mask, options) == std::tie(p, m, o);
  }
};

}  // namespace

std::shared_ptr<const Plan> cached_plan(const Problem& problem, const Mask& mask,
                                        const PlanOptions& options) {
  // Never destroyed: threads may still plan when the process ends.
  static auto& mutex = *new std::mutex;
  static auto& entries = *new LastUsed<Entry>;
  const auto find = [&] {
    const Entry* known =
        entries.find([&](const Entry& entry) { return entry.answers(problem, mask, options); });
    return known ? known->plan : nullptr;
  };
  {
    const std::lock_guard lock(mutex);
    if (auto plan = find()) return plan;
  }
  auto made = std::make_shared<const Plan>(make_plan(problem, mask, options));
  const std::lock_guard lock(mutex);
  if (auto plan = find()) return plan;  // another thread was faster
  entries.add({problem, mask, options, made, mask.bytes() + made->bytes() + made->tile_bytes()});
  entries.trim(kKept, [](const Entry&) { return true; });
  return made;
}

}  // namespace verbatim
