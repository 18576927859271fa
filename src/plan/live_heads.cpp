#include "plan/live_heads.h"

#include <algorithm>
#include <vector>

namespace verbatim {

int32_t live_heads(const Plan& plan) {
  const auto heads = static_cast<int32_t>(plan.order_of_head.size());
  const Placement& placement = plan.placement;
  if (plan.pass == Pass::forward || plan.level == Level::not_guaranteed || !placement.queue ||
      plan.orders.size() != 1) {
    return heads;
  }
  const auto count = static_cast<int64_t>(placement.tasks.size());
  const auto size = static_cast<size_t>(heads);
  std::vector<int64_t> first(size, count), last(size, -1);  // tickets; `last` of all heads up to h
  for (int64_t ticket = 0; ticket < count; ++ticket) {
    const auto head = static_cast<size_t>(placement.tasks[static_cast<size_t>(ticket)].head);
    first[head] = std::min(first[head], ticket);
    last[head] = ticket;
  }
  for (size_t h = 1; h < size; ++h) last[h] = std::max(last[h], last[h - 1]);
  int64_t live = 1;
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t before = first[static_cast<size_t>(h)] - placement.workers / 2;
    const auto over = std::ranges::lower_bound(last, before) - last.begin();  // heads done by then
    live = std::max(live, h - std::min<int64_t>(over, h) + 1);
  }
  return static_cast<int32_t>(std::min<int64_t>(live, heads));
}

}  // namespace verbatim
