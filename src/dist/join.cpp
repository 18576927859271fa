#include "dist/join.h"

#include <algorithm>
#include <utility>

#include "dist/deal.h"

namespace verbatim::dist {
namespace {

/// Whether a rank has all query heads of a head's group: kernels take it that heads have as many.
bool has_group(const Problem& problem, Interval q_heads, int32_t head) {
  const int64_t first = head % problem.kv_heads * problem.group();
  return q_heads.begin <= first && first + problem.group() <= q_heads.end;
}

}  // namespace

int32_t chains_of(const OrderPart& part) {
  int32_t chains = 0;
  for (const Stretch& stretch : part.stretches) chains += stretch.count;
  return chains;
}

int32_t heads_of_launch(int64_t chains, int64_t visits) {
  // Visits of a worker: longer than a host takes to ask for the launch and its messages.
  constexpr int64_t kWorthALaunch = 512;
  const auto fewest = [](int64_t wanted, int64_t each) {
    return (wanted + each - 1) / std::max<int64_t>(each, 1);
  };
  const int64_t full = chains >= kWorkers ? 1 : fewest(2 * kWorkers, chains);
  return static_cast<int32_t>(std::max(full, fewest(kWorthALaunch * kWorkers, visits)));
}

bool can_join(const Problem& problem, Interval q_heads, int32_t head, int32_t other) {
  return head / problem.kv_heads == other / problem.kv_heads && has_group(problem, q_heads, head) &&
         has_group(problem, q_heads, other);
}

std::vector<Compute> join(std::vector<HeadPart> parts, Interval q_heads, const Problem& problem,
                          int32_t most) {
  std::vector<Compute> launches;
  for (HeadPart& part : parts) {
    const bool goes_on = !launches.empty() && std::ssize(launches.back().heads) < most &&
                         can_join(problem, q_heads, launches.back().heads.back().head, part.head);
    if (!goes_on) launches.emplace_back();
    launches.back().heads.push_back(std::move(part));
  }
  return launches;
}

}  // namespace verbatim::dist
