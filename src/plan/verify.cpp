// The proof that a plan computes every tile once, in the promised order, without a hang.
#include "plan/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "core/threads.h"
#include "plan/check_order.h"

namespace verbatim {
namespace {

constexpr size_t kRunsWorthThreads = 4096;  // of all orders; fewer are proved before threads wake

/// `order` with the visits of query head 0 alone, where every task is one chain that walks all
/// query heads of the group in turn and each as the first: then no task waits for others than here,
/// for when all have done with one query head the next begins as it did. Null where that is not so.
std::shared_ptr<const HeadOrder> first_query_head(const HeadOrder& order) {
  if (order.group == 1 || order.tasks.size() != order.chains.size()) return nullptr;
  auto first = std::make_shared<HeadOrder>();
  first->pass = order.pass;
  first->tiles = order.tiles;
  first->tasks = order.tasks;
  for (Chain chain : order.chains) {
    RunView own;
    int32_t q_head = 0;
    bool repeats = chain.addends <= 1;
    order.for_each_part(chain, [&](int32_t visited, RunView runs) {
      if (visited == 0) own = runs;
      repeats = repeats && visited == q_head++ && own == runs;
    });
    if (!repeats || (q_head != 0 && q_head != order.group)) return nullptr;
    chain.run_begin = static_cast<int32_t>(first->runs.size());
    for (const Run& run : own) first->runs.push_back(run);
    chain.run_end = static_cast<int32_t>(first->runs.size());
    first->chains.push_back(chain);
  }
  return first;
}

/// How many tasks query head 0 has, the first of `order`, where every chain visits one query head,
/// and those of the others are the same, head after head, each behind that of the head before on
/// its KV tile. Then tasks wait for others of their query head as those do, and for those of the
/// head before, which never wait for them. 0 where that is not so.
size_t tasks_of_part(const HeadOrder& order) {
  const auto group = static_cast<size_t>(order.group);
  const size_t tasks = order.tasks.size() / group, chains = order.chains.size() / group;
  if (group == 1 || tasks * group != order.tasks.size() || chains * group != order.chains.size())
    return 0;
  for (size_t t = 0; t < order.tasks.size(); ++t) {
    const auto before = static_cast<int32_t>(t / tasks * chains);
    const Task &task = order.tasks[t], &own = order.tasks[t % tasks];
    if (own.chain_end > static_cast<int32_t>(chains) ||
        task.chain_begin != own.chain_begin + before || task.chain_end != own.chain_end + before)
      return 0;
  }
  std::vector<RunView> views;
  size_t near = 0;
  for (size_t c = 0; c < order.chains.size(); ++c) {
    const auto part = static_cast<int32_t>(c / chains);
    const Chain& chain = order.chains[c];
    RunView view;
    int32_t parts = 0, q_head = part;
    order.runs.for_each_repeat(chain.run_begin, chain.run_end, near,
                               [&](int32_t visited, int32_t heads, RunView runs) {
                                 view = runs;
                                 q_head = visited;
                                 parts += heads;
                               });
    if (part == 0) views.push_back(view);
    if (parts > 1 || q_head != part || chain.continues || chain.addend != part ||
        chain.addends != order.group || chain.tile != order.chains[c % chains].tile ||
        view != views[c % chains])
      return 0;
  }
  return tasks;
}

/// Pairs (waiting, awaited) of the first `count` tasks of `head`, which follows `order` and of
/// which these wait for no others: every visit of theirs is walked.
OrderProof::Waits walk_waits(const std::shared_ptr<const HeadOrder>& order, int32_t head,
                             size_t count) {
  Plan plan;
  plan.pass = order->pass;
  plan.orders = {order};
  plan.order_of_head.resize(head + 1);  // what errors name is this head
  std::vector<PlacedTask> tasks;
  for (size_t t = 0; t < count; ++t) tasks.push_back({head, static_cast<int32_t>(t)});
  std::vector<Walker> sequences;
  for (const PlacedTask& task : tasks) sequences.emplace_back(plan, std::span(&task, 1));
  std::vector<std::vector<int32_t>> awaited(tasks.size());  // by each task, many times over
  dry_run(plan, std::move(sequences), [&](const PlacedTask& waiting, int32_t other) {
    awaited[waiting.task].push_back(other);
  });
  OrderProof::Waits waits;
  std::vector<int32_t> last(tasks.size(), -1);  // that was found to wait for each
  for (int32_t t = 0; t < std::ssize(awaited); ++t)
    for (const int32_t other : awaited[t])
      if (std::exchange(last[other], t) != t) waits.emplace_back(t, other);
  return waits;
}

/// The same of all tasks, by as few visits as will do.
OrderProof::Waits find_waits(const std::shared_ptr<const HeadOrder>& order, int32_t head) {
  const auto all = static_cast<int32_t>(order->tasks.size());
  const auto part = static_cast<int32_t>(tasks_of_part(*order));
  if (part == 0) {
    const auto first = first_query_head(*order);
    return walk_waits(first ? first : order, head, all);
  }
  const OrderProof::Waits own = walk_waits(order, head, part);
  OrderProof::Waits waits;
  for (int32_t first = 0; first < all; first += part) {
    for (const auto& [waiting, awaited] : own) waits.emplace_back(waiting + first, awaited + first);
    for (int32_t t = first; first > 0 && t < first + part; ++t) waits.emplace_back(t, t - part);
  }
  return waits;
}

bool counts_from_0(std::span<const int32_t> sequence) {
  for (size_t t = 0; t < sequence.size(); ++t)
    if (sequence[t] != static_cast<int32_t>(t)) return false;
  return true;
}

/// The tasks of each head in the sequence of the placement; throws unless it holds each once.
std::vector<std::vector<int32_t>> check_placement(const Plan& plan) {
  const Placement& placement = plan.placement;
  const auto heads = static_cast<int32_t>(plan.order_of_head.size());
  std::vector<std::vector<int32_t>> sequences(heads);
  for (int32_t h = 0; h < heads; ++h) sequences[h].reserve(plan.order(h).tasks.size());
  for (const PlacedTask& task : placement.tasks) {
    if (task.head < 0 || task.head >= heads)
      refuse_plan(fmt::format("task {} of head {} does not exist", task.task, task.head));
    sequences[task.head].push_back(task.task);
  }
  std::vector<bool> placed;
  for (int32_t h = 0; h < heads; ++h) {
    const auto& sequence = sequences[h];
    const size_t tasks = plan.order(h).tasks.size();
    if (sequence.size() == tasks && counts_from_0(sequence)) continue;  // as most do
    placed.assign(tasks, false);
    for (const int32_t task : sequence) {
      if (task < 0 || static_cast<size_t>(task) >= tasks)
        refuse_plan(fmt::format("task {} of head {} does not exist", task, h));
      if (placed[task]) refuse_plan(fmt::format("task {} of head {} is placed twice", task, h));
      placed[task] = true;
    }
    const auto missing = std::find(placed.begin(), placed.end(), false);
    if (missing != placed.end())
      refuse_plan(fmt::format("task {} of head {} is not placed", missing - placed.begin(), h));
  }
  if (placement.workers < 1) refuse_plan("a placement needs a worker");
  const auto& begin = placement.worker_begin;
  const bool covers = begin.size() == static_cast<size_t>(placement.workers) + 1 &&
                      begin.front() == 0 && std::is_sorted(begin.begin(), begin.end()) &&
                      static_cast<size_t>(begin.back()) == placement.tasks.size();
  if (placement.queue ? !begin.empty() : !covers)
    refuse_plan("the tasks of the workers do not cover the placement");
  return sequences;
}

/// Heads of which some task may wait for one that comes later in its head's sequence.
/// `ordered[k]`: orders[k] counts up as issued.
std::vector<int32_t> heads_with_late_waits(const Plan& plan, const std::vector<bool>& ordered,
                                           const std::vector<std::vector<int32_t>>& sequences) {
  struct Proof {
    const std::vector<int32_t>* sequence;
    bool late;
  };
  std::vector<std::optional<Proof>> last(plan.orders.size());  // heads mostly share their sequence
  std::vector<int32_t> heads;
  for (int32_t h = 0; h < std::ssize(sequences); ++h) {
    const auto& sequence = sequences[h];
    const size_t kind = plan.order_of_head[h];
    auto& proof = last[kind];
    if (!proof || *proof->sequence != sequence) {
      const HeadOrder& order = *plan.orders[kind];
      const bool as_issued = counts_from_0(sequence);
      proof = {&sequence, as_issued ? !ordered[kind] : !counts_up({order, h}, sequence)};
    }
    if (proof->late) heads.push_back(h);
  }
  return heads;
}

/// Tasks that must be under way at once when free workers take them off the list: the largest
/// block that no earlier task waits into.
int32_t queue_residency(const Plan& plan, const std::vector<bool>& ordered,
                        const std::vector<std::vector<int32_t>>& sequences,
                        std::vector<std::optional<OrderProof::Waits>>& known) {
  const std::vector<int32_t> late = heads_with_late_waits(plan, ordered, sequences);
  if (late.empty()) return 1;
  const auto& tasks = plan.placement.tasks;
  std::vector<std::vector<int32_t>> position(plan.order_of_head.size());  // [head][task]
  for (size_t h = 0; h < position.size(); ++h) position[h].resize(sequences[h].size());
  for (size_t p = 0; p < tasks.size(); ++p)
    position[tasks[p].head][tasks[p].task] = static_cast<int32_t>(p);
  // Waits are a matter of one head, so heads that share an order share their waits.
  std::vector<int32_t> furthest(tasks.size());  // last position that a task waits for
  std::iota(furthest.begin(), furthest.end(), 0);
  std::vector<int32_t> unknown;  // heads, one of each order
  std::vector<bool> listed(plan.orders.size());
  size_t runs = 0;
  for (const int32_t h : late) {
    const size_t kind = plan.order_of_head[h];
    if (known[kind] || listed[kind]) continue;
    listed[kind] = true;
    unknown.push_back(h);
    runs += plan.orders[kind]->runs.size();
  }
  const int cores = runs < kRunsWorthThreads ? 1 : core_count();
  for_each_in_parallel(cores, std::ssize(unknown), [&](int64_t i) {
    const size_t kind = plan.order_of_head[unknown[i]];
    known[kind] = find_waits(plan.orders[kind], unknown[i]);
  });
  for (const int32_t h : late) {
    const auto& of_task = position[h];
    for (const auto& [waiting, awaited] : *known[plan.order_of_head[h]]) {
      int32_t& last = furthest[of_task[waiting]];
      last = std::max(last, of_task[awaited]);
    }
  }
  return largest_block(furthest);
}

/// With fixed sequences every worker must run: who waits may wait for any other.
int32_t static_residency(const Plan& plan, const std::vector<bool>& ordered) {
  const Placement& placement = plan.placement;
  bool increasing = std::find(ordered.begin(), ordered.end(), false) == ordered.end();
  std::vector<Walker> sequences;
  for (int32_t w = 0; w < placement.workers; ++w) {
    const auto begin = placement.tasks.begin() + placement.worker_begin[w];
    const auto end = placement.tasks.begin() + placement.worker_begin[w + 1];
    // All waits go from (head, task) to a smaller one: so no cycle when all sequences grow.
    increasing = increasing && std::is_sorted(begin, end, [](const auto& a, const auto& b) {
                   return std::tie(a.head, a.task) < std::tie(b.head, b.task);
                 });
    sequences.emplace_back(plan, std::span(begin, end));
  }
  if (!increasing) dry_run(plan, std::move(sequences), {});
  return placement.workers;
}

}  // namespace

OrderProof::OrderProof(const Plan& plan)
    : ordered_(plan.orders.size()), waits_(plan.orders.size()) {
  std::vector<Subject> subjects;  // of each order the first head that follows it
  std::vector<int32_t> kinds;
  std::vector<bool> listed(plan.orders.size());
  size_t runs = 0;
  for (size_t h = 0; h < plan.order_of_head.size(); ++h) {
    const int32_t kind = plan.order_of_head[h];
    if (kind < 0 || static_cast<size_t>(kind) >= plan.orders.size())
      refuse_plan(fmt::format("head {} follows order {}, which does not exist", h, kind));
    if (listed[kind]) continue;
    listed[kind] = true;
    const HeadOrder& order = *plan.orders[kind];
    if (order.pass != plan.pass)
      refuse_plan(fmt::format("head {} follows an order of the other pass", h));
    subjects.push_back({order, static_cast<int32_t>(h)});
    kinds.push_back(kind);
    runs += order.runs.size();
  }
  const auto unknown = std::find(listed.begin(), listed.end(), false);
  if (unknown != listed.end())  // what is not proved here would still enter the fingerprint
    refuse_plan(fmt::format("no head follows order {}", unknown - listed.begin()));
  std::vector<char> counts_up(subjects.size());  // not bits, which threads would share
  for_each_in_parallel(runs < kRunsWorthThreads ? 1 : core_count(), std::ssize(subjects),
                       [&](int64_t i) { counts_up[i] = check_order(subjects[i]); });
  for (size_t i = 0; i < subjects.size(); ++i) {
    ordered_[kinds[i]] = counts_up[i];
    rotates_ |= !counts_up[i];
  }
}

int32_t OrderProof::residency(const Plan& plan) {
  const auto sequences = check_placement(plan);
  return plan.placement.queue ? queue_residency(plan, ordered_, sequences, waits_)
                              : static_residency(plan, ordered_);
}

int32_t largest_block(std::span<const int32_t> furthest) {
  int32_t largest = 1, begin = 0, last = 0;
  for (size_t p = 0; p < furthest.size(); ++p) {
    last = std::max(last, furthest[p]);
    if (last != static_cast<int32_t>(p)) continue;
    largest = std::max(largest, last + 1 - begin);
    begin = last = static_cast<int32_t>(p) + 1;
  }
  return largest;
}

int32_t verify(const Plan& plan) { return OrderProof(plan).residency(plan); }

}  // namespace verbatim
