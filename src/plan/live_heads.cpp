#include "plan/live_heads.h"

#include <algorithm>
#include <span>
#include <vector>

namespace verbatim {
namespace {

/// First and last ticket of each of a row of heads.
struct Tickets {
  std::vector<int64_t> first, last;

  explicit Tickets(size_t heads) : first(heads, INT64_MAX), last(heads, -1) {}
  void add(size_t head, int64_t ticket) {
    first[head] = std::min(first[head], ticket);
    last[head] = ticket;
  }
};

/// The least S so that all tasks up to [h - S] are issued `margin` tasks before the first of h.
int32_t least_distance(std::span<const int64_t> first, std::span<const int64_t> last,
                       int64_t margin) {
  std::vector<int64_t> done;  // ticket by which all up to a head are issued
  int64_t live = 1;
  for (size_t h = 0; h < first.size(); ++h) {
    const auto over = std::ranges::lower_bound(done, first[h] - margin) - done.begin();
    live = std::max<int64_t>(live, static_cast<int64_t>(h) - over + 1);
    done.push_back(h == 0 ? last[h] : std::max(last[h], done.back()));
  }
  return static_cast<int32_t>(live);
}

/// In how many equal parts the chains of every tile visit the group, part `addend` by each; 1 where
/// some do not.
int32_t equal_parts(const HeadOrder& order) {
  const int32_t parts = order.chains.empty() ? 1 : order.chains[0].addends;
  if (order.group % parts != 0) return 1;
  for (const Chain& chain : order.chains) {
    if (chain.addends != parts) return 1;
    bool own = true;
    order.for_each_part(chain, [&](int32_t q_head, RunView) {
      own = own && q_head / (order.group / parts) == chain.addend;
    });
    if (!own) return 1;
  }
  return parts;
}

}  // namespace

LiveHeads live_heads(const Plan& plan) {
  const auto heads = static_cast<int32_t>(plan.order_of_head.size());
  const auto group = static_cast<int32_t>(plan.problem.group());
  const Placement& placement = plan.placement;
  if (plan.pass == Pass::forward || plan.level == Level::not_guaranteed || !placement.queue ||
      plan.orders.size() != 1) {
    return {heads, group};
  }
  const HeadOrder& order = *plan.orders[0];
  const int32_t parts = equal_parts(order);
  const auto size = static_cast<size_t>(heads), shares = static_cast<size_t>(parts);
  Tickets of_heads(size), of_parts(size * shares);
  for (size_t ticket = 0; ticket < placement.tasks.size(); ++ticket) {
    const PlacedTask placed = placement.tasks[ticket];
    const size_t head = placed.head;
    of_heads.add(head, static_cast<int64_t>(ticket));
    const Task& task = order.tasks[placed.task];
    for (int32_t c = task.chain_begin; parts > 1 && c < task.chain_end; ++c) {
      const size_t part = order.chains[c].addend;
      of_parts.add(head * shares + part, static_cast<int64_t>(ticket));
    }
  }
  const int64_t margin = placement.workers / 2;
  int32_t live = 1;  // parts of each head
  for (size_t h = 0; h < size && live < parts; ++h) {
    const auto of_head = [&](const std::vector<int64_t>& tickets) {
      return std::span(tickets).subspan(h * shares, shares);
    };
    live = std::max(live, least_distance(of_head(of_parts.first), of_head(of_parts.last), margin));
  }
  while (parts % live != 0) ++live;
  return {std::min(least_distance(of_heads.first, of_heads.last, margin), heads),
          live * (group / parts)};
}

}  // namespace verbatim
