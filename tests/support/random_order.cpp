#include "support/random_order.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "core/random.h"

namespace verbatim::test {
namespace {

template <class T>
void shuffle(std::vector<T>& list, Random& random) {
  for (int64_t i = std::ssize(list) - 1; i > 0; --i) std::swap(list[i], list[random.between(0, i)]);
}

/// The visits of each chain, one run each.
std::vector<std::vector<Run>> visits_of(const HeadOrder& order) {
  std::vector<std::vector<Run>> visits(order.chains.size());
  for (size_t c = 0; c < order.chains.size(); ++c)
    for (int32_t r = order.chains[c].run_begin; r < order.chains[c].run_end; ++r) {
      const Run run = order.runs[static_cast<size_t>(r)];
      for (int32_t i = 0; i < run.count; ++i)
        visits[c].push_back({.q_head = run.q_head,
                             .first = run.tile(i),
                             .count = 1,
                             .slice_begin = run.slice_begin,
                             .slice_count = run.slice_count});
    }
  return visits;
}

/// Plays `at_once` chains of the sequence at a time, any of which makes its next visit: rows and
/// tiles that are shared count what they meet.
void number_addends(HeadOrder& order, std::vector<std::vector<Run>>& visits, Random& random,
                    int32_t at_once) {
  std::map<std::pair<int32_t, int32_t>, int32_t> of_row, of_tile;
  std::vector<std::pair<size_t, size_t>> begun;  // chains, and how many visits they have made
  size_t next = 0;
  while (next < visits.size() || !begun.empty()) {
    while (next < visits.size() && std::ssize(begun) < at_once) begun.emplace_back(next++, 0);
    const auto turn = begun.begin() + random.between(0, std::ssize(begun) - 1);
    auto& [chain, made] = *turn;
    if (made < visits[chain].size()) {
      Run& visit = visits[chain][made++];
      if (order.pass == Pass::backward) visit.addend = of_row[{visit.q_head, visit.first}]++;
      continue;
    }
    Chain& done = order.chains[chain];
    done.addend = of_tile[{done.q_head, done.tile}]++;
    begun.erase(turn);
  }
}

HeadOrder shuffled(const HeadOrder& rule, Random& random, int32_t at_once) {
  HeadOrder order = rule;
  order.name = "random";
  order.row_chunks.clear();
  std::vector<std::vector<Run>> visits = visits_of(rule);
  std::vector<size_t> sequence(rule.chains.size());
  for (size_t c = 0; c < sequence.size(); ++c) sequence[c] = c;
  shuffle(sequence, random);
  std::vector<std::vector<Run>> moved;
  order.chains.clear();
  order.tasks.clear();
  for (const size_t c : sequence) {
    shuffle(visits[c], random);
    moved.push_back(std::move(visits[c]));
    order.chains.push_back(rule.chains[c]);
    const auto chain = static_cast<int32_t>(order.tasks.size());
    order.tasks.push_back({chain, chain + 1});
  }
  number_addends(order, moved, random, at_once);
  order.runs.clear();
  int32_t end = 0;
  for (size_t c = 0; c < moved.size(); ++c) {
    for (const Run& visit : moved[c]) order.runs.push_back(visit);
    order.chains[c].run_begin = end;
    order.chains[c].run_end = end += static_cast<int32_t>(moved[c].size());
  }
  return order;
}

}  // namespace

Plan in_random_order(const Plan& plan, uint64_t seed, int32_t at_once, int32_t workers) {
  Random random(seed);
  Plan own = plan;
  for (auto& order : own.orders)
    order = std::make_shared<const HeadOrder>(shuffled(*order, random, at_once));
  std::vector<PlacedTask> tasks;
  for (size_t head = 0; head < own.order_of_head.size(); ++head)
    for (size_t t = 0; t < own.order(static_cast<int32_t>(head)).tasks.size(); ++t)
      tasks.push_back({static_cast<int32_t>(head), static_cast<int32_t>(t)});
  own.placement = {.name = "queue", .workers = workers, .worker_begin = {}, .tasks = tasks};
  own.residency = verify(own);
  own.placement.workers = std::max(workers, own.residency);
  return own;
}

}  // namespace verbatim::test
