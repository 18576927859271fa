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

/// Calls f(query head of the group) for every run of `chain`.
template <class F>
void for_each_query(const HeadOrder& order, const Chain& chain, F&& f) {
  for (int32_t r = chain.run_begin; r < chain.run_end; ++r)
    f(order.runs[static_cast<size_t>(r)].q_head);
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
  const auto size = static_cast<size_t>(heads), members = static_cast<size_t>(group);
  Tickets of_heads(size), of_queries(size * members);
  for (size_t ticket = 0; ticket < placement.tasks.size(); ++ticket) {
    const PlacedTask placed = placement.tasks[ticket];
    const auto head = static_cast<size_t>(placed.head);
    of_heads.add(head, static_cast<int64_t>(ticket));
    const Task& task = order.tasks[static_cast<size_t>(placed.task)];
    for (int32_t c = task.chain_begin; c < task.chain_end; ++c) {
      for_each_query(order, order.chains[static_cast<size_t>(c)], [&](int32_t query) {
        of_queries.add(head * members + static_cast<size_t>(query), static_cast<int64_t>(ticket));
      });
    }
  }
  const int64_t margin = placement.workers / 2;
  int32_t queries = 1;
  for (size_t h = 0; h < size && queries < group; ++h) {
    const auto of_head = [&](const std::vector<int64_t>& tickets) {
      return std::span(tickets).subspan(h * members, members);
    };
    queries = std::max(queries,
                       least_distance(of_head(of_queries.first), of_head(of_queries.last), margin));
  }
  const auto fits = [&](const Chain& chain) {
    bool fits = true;
    for_each_query(order, chain, [&](int32_t query) {
      fits &= query / queries == group * chain.addend / chain.addends / queries;
    });
    return fits;
  };
  while (group % queries != 0 || !std::ranges::all_of(order.chains, fits)) ++queries;
  return {std::min(least_distance(of_heads.first, of_heads.last, margin), heads), queries};
}

}  // namespace verbatim
