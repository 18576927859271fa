// Plans by problem: what a training step asks for again and again is made once.
#include <algorithm>
#include <list>
#include <mutex>
#include <tuple>

#include "verbatim/schedule.h"

namespace verbatim {
namespace {

constexpr size_t kKept = 64;

struct Entry {
  Problem problem;
  Mask mask;
  PlanOptions options;
  std::shared_ptr<const Plan> plan;

  bool answers(const Problem& p, const Mask& m, const PlanOptions& o) const {
    return std::tie(problem, mask, options) == std::tie(p, m, o);
  }
};

}  // namespace

std::shared_ptr<const Plan> cached_plan(const Problem& problem, const Mask& mask,
                                        const PlanOptions& options) {
  // Never destroyed: threads may still plan when the process ends.
  static auto& mutex = *new std::mutex;
  static auto& entries = *new std::list<Entry>;  // last used first
  const auto find = [&] {
    const auto found = std::ranges::find_if(
        entries, [&](const Entry& entry) { return entry.answers(problem, mask, options); });
    if (found != entries.end()) entries.splice(entries.begin(), entries, found);
    return found != entries.end() ? entries.front().plan : nullptr;
  };
  {
    const std::lock_guard lock(mutex);
    if (auto plan = find()) return plan;
  }
  auto made = std::make_shared<const Plan>(make_plan(problem, mask, options));
  const std::lock_guard lock(mutex);
  if (auto plan = find()) return plan;  // another thread was faster
  entries.push_front({problem, mask, options, made});
  if (entries.size() > kKept) entries.pop_back();
  return made;
}

}  // namespace verbatim
