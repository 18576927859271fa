// The proof that a plan computes every tile once, in the promised order, without a hang.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "plan/dry_run.h"
#include "plan/row_counters.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

[[noreturn]] void fail(std::string message) {
  throw Error(ErrorCode::invalid_plan, "plan.verify", std::move(message));
}

/// One distinct order, named in errors by the first head that follows it.
struct Subject {
  const HeadOrder& order;
  int32_t head;

  bool backward() const { return order.pass == Pass::backward; }
  int32_t kept_tiles() const {
    return backward() ? order.tiles->kv_tiles() : order.tiles->q_tiles();
  }
  int32_t streamed_tiles() const {
    return backward() ? order.tiles->q_tiles() : order.tiles->kv_tiles();
  }
  /// Query heads that chains tell apart: in the backward a chain may walk all of the group.
  size_t chain_heads() const { return backward() ? 1 : static_cast<size_t>(order.group); }
  std::span<const TileRun> expected(int32_t kept) const {
    return backward() ? order.tiles->column(kept) : order.tiles->row(kept);
  }
  std::string name(int32_t kept, int32_t q_head, int32_t streamed) const {
    return name_tile(order.pass, head, q_head, kept, streamed);
  }
};

void check_ranges(const Subject& subject) {
  const HeadOrder& order = subject.order;
  const auto require = [&](bool ok, const char* what, size_t index) {
    if (!ok) fail(fmt::format("{} {} of head {} is out of range", what, index, subject.head));
  };
  const auto inside = [](int32_t begin, int32_t end, size_t size) {
    return 0 <= begin && begin <= end && static_cast<size_t>(end) <= size;
  };
  const auto group = order.group;
  if (group < 1) fail(fmt::format("head {} has a group of {} query heads", subject.head, group));
  int32_t chains = 0;
  for (size_t k = 0; k < order.tasks.size(); ++k) {
    const Task& task = order.tasks[k];
    require(task.chain_begin == chains && task.chain_begin < task.chain_end &&
                inside(task.chain_begin, task.chain_end, order.chains.size()),
            "task", k);
    chains = task.chain_end;
  }
  require(static_cast<size_t>(chains) == order.chains.size(), "chain", order.chains.size());
  for (size_t k = 0; k < order.chains.size(); ++k) {
    const Chain& chain = order.chains[k];
    require(inside(chain.run_begin, chain.run_end, order.runs.size()) && 0 <= chain.tile &&
                chain.tile < subject.kept_tiles() &&
                static_cast<size_t>(std::max(chain.addends, 0)) <= order.chains.size() &&
                0 <= chain.q_head && chain.q_head < (subject.backward() ? 1 : group),
            "chain", k);
  }
  for (size_t k = 0; k < order.runs.size(); ++k) {
    const Run& run = order.runs[k];
    const int64_t last = run.first + (int64_t{run.count} - 1) * run.step;
    const int64_t steps = (int64_t{run.count} - 1) / std::max(run.addend_every, 1);
    const int64_t last_addend = run.addend + steps * run.addend_step;
    require(run.count > 0 && run.step != 0 && run.addend_every > 0 && 0 <= run.first &&
                run.first < subject.streamed_tiles() && 0 <= last &&
                last < subject.streamed_tiles() && 0 <= run.q_head && run.q_head < group &&
                0 <= run.addend && 0 <= last_addend && last_addend <= INT32_MAX,
            "run", k);
  }
}

/// Visits [first, last) of one kept tile by one query head, with their slices.
struct Visited {
  int32_t kept, q_head, first, last, slice_begin, slice_count;
};

std::vector<Visited> sorted_visits(const HeadOrder& order) {
  std::vector<Visited> visits;
  for (const Chain& chain : order.chains) {
    for (int32_t r = chain.run_begin; r < chain.run_end; ++r) {
      const Run& run = order.runs[static_cast<size_t>(r)];
      const auto add = [&](int32_t first, int32_t last) {
        visits.push_back({chain.tile, run.q_head, first, last, run.slice_begin, run.slice_count});
      };
      if (run.step == 1) {
        add(run.first, run.first + run.count);
      } else if (run.step == -1) {
        add(run.first - run.count + 1, run.first + 1);
      } else {
        for (int32_t i = 0; i < run.count; ++i) add(run.tile(i), run.tile(i) + 1);
      }
    }
  }
  std::sort(visits.begin(), visits.end(), [](const Visited& a, const Visited& b) {
    return std::tie(a.kept, a.q_head, a.first) < std::tie(b.kept, b.q_head, b.first);
  });
  return visits;
}

bool same_slices(const TileMap& tiles, const Visited& visit, const TileRun& run) {
  if (visit.slice_count != run.slice_count) return false;
  const auto size = static_cast<int64_t>(tiles.slice_ids.size());
  if (visit.slice_begin < 0 || int64_t{visit.slice_begin} + visit.slice_count > size) return false;
  const auto ids = tiles.slice_ids.begin();
  return std::equal(ids + run.slice_begin, ids + run.slice_begin + run.slice_count,
                    ids + visit.slice_begin);
}

void check_complete(const Subject& subject) {
  const HeadOrder& order = subject.order;
  const std::vector<Visited> visits = sorted_visits(order);
  auto visit = visits.begin();
  for (int32_t kept = 0; kept < subject.kept_tiles(); ++kept) {
    if (subject.expected(kept).empty()) {
      if (visit != visits.end() && visit->kept == kept)
        fail(subject.name(kept, visit->q_head, visit->first) + " is empty but visited");
      continue;
    }
    for (int32_t q_head = 0; q_head < order.group; ++q_head) {
      const auto here = [&] {
        return visit != visits.end() && visit->kept == kept && visit->q_head == q_head;
      };
      int32_t next = 0;  // tiles below are settled
      for (const TileRun& run : subject.expected(kept)) {
        next = std::max(next, run.first);
        while (next < run.last) {
          if (here() && visit->first < next)
            fail((visit != visits.begin() && (visit - 1)->kept == kept &&
                          (visit - 1)->q_head == q_head && (visit - 1)->last > visit->first
                      ? subject.name(kept, q_head, visit->first) + " is visited twice"
                      : subject.name(kept, q_head, visit->first) + " is empty but visited"));
          if (!here() || visit->first > next)
            fail(subject.name(kept, q_head, next) + " is never visited");
          if (!same_slices(*order.tiles, *visit, run))
            fail(subject.name(kept, q_head, next) + " is masked by other slices than its own");
          if (visit->last > run.last)
            fail(subject.name(kept, q_head, run.last) + " is not visited like its mask");
          next = visit->last;
          ++visit;
        }
      }
      if (here()) {
        const bool twice = visit->first < next;
        fail(subject.name(kept, q_head, visit->first) +
             (twice ? " is visited twice" : " is empty but visited"));
      }
    }
  }
}

/// Chains that share a tile carry the addends 0..n-1; a tile without work has a chain of its own.
void check_shared_tiles(const Subject& subject) {
  const HeadOrder& order = subject.order;
  const size_t heads = subject.chain_heads();
  std::map<size_t, std::vector<bool>> seen;  // by tile and query head
  for (const Chain& chain : order.chains) {
    auto& addends =
        seen[static_cast<size_t>(chain.tile) * heads + static_cast<size_t>(chain.q_head)];
    addends.resize(
        std::max<size_t>(addends.size(), static_cast<size_t>(std::max(chain.addends, 1))));
    const auto tile = [&] {
      return subject.name(chain.tile, chain.q_head,
                          chain.run_begin < chain.run_end
                              ? order.runs[static_cast<size_t>(chain.run_begin)].first
                              : -1);
    };
    if (chain.addend < 0 || chain.addend >= chain.addends ||
        addends.size() != static_cast<size_t>(chain.addends) ||
        addends[static_cast<size_t>(chain.addend)])
      fail(fmt::format("{}: its chain has addend {} of {}, out of range or given twice", tile(),
                       chain.addend, chain.addends));
    addends[static_cast<size_t>(chain.addend)] = true;
    for (int32_t r = chain.run_begin; !subject.backward() && r < chain.run_end; ++r)
      if (order.runs[static_cast<size_t>(r)].q_head != chain.q_head)
        fail(tile() + ": a run visits another query head than its chain");
  }
  for (size_t k = 0; k < static_cast<size_t>(subject.kept_tiles()) * heads; ++k) {
    const auto addends = seen.find(k);
    const auto missing = addends == seen.end()
                             ? 0
                             : std::ranges::find(addends->second, false) - addends->second.begin();
    if (addends == seen.end() || missing < std::ssize(addends->second))
      fail(fmt::format(
          "{}: chain {} of its tile is missing",
          subject.name(static_cast<int32_t>(k / heads), static_cast<int32_t>(k % heads), -1),
          missing));
  }
}

void check_row_totals(const Subject& subject) {
  const HeadOrder& order = subject.order;
  if (order.row_addends.size() != static_cast<size_t>(order.tiles->q_tiles()))
    fail(fmt::format("head {} counts the addends of {} rows, expected {}", subject.head,
                     order.row_addends.size(), order.tiles->q_tiles()));
  for (int32_t row = 0; row < order.tiles->q_tiles(); ++row) {
    int32_t addends = 0;
    for (const TileRun& run : order.tiles->row(row)) addends += run.last - run.first;
    if (order.row_addends[static_cast<size_t>(row)] != addends)
      fail(fmt::format("row (head {}, q_tile {}) promises {} addends, its mask has {}",
                       subject.head, row, order.row_addends[static_cast<size_t>(row)], addends));
  }
}

/// Whether the visits of `run` carry exactly the numbers of `stair`, a part of its rows.
bool matches(const Run& run, const Stair& stair) {
  const auto index = [&](int32_t row) { return (row - run.first) / run.step; };
  const int32_t every = run.addend_every;
  const bool flat = run.addend_step == 0 || run.count <= every;
  if (flat && stair.step == 0) return run.addend == stair.value;
  const bool up = run.step > 0;
  // Equal stairs in phase are compared by their ends, others row by row.
  if (every == stair.every && run.addend_step * run.step == stair.step &&
      index(up ? stair.begin : stair.end - 1) % every == 0 &&
      (up || stair.size() % stair.every == 0))
    return run.addend_of(index(stair.begin)) == stair.value;
  for (int32_t row = stair.begin; row < stair.end; ++row)
    if (run.addend_of(index(row)) != stair.at(row)) return false;
  return true;
}

/// Replays the tasks in the order they are issued: true when each visit finds its row counted up
/// to exactly its addend. Then the addends are 0..n-1 and no task waits for a later one. Costs
/// runs, not visits.
bool counts_up_as_issued(const Subject& subject) {
  const HeadOrder& order = subject.order;
  const size_t heads = subject.chain_heads();
  std::map<int32_t, RowCounters> rows;  // of each query head that has visits
  std::vector<int32_t> shared(static_cast<size_t>(subject.kept_tiles()) * heads);
  std::vector<Stair> stairs;
  for (const Chain& chain : order.chains) {
    const auto tile = static_cast<size_t>(chain.tile) * heads + static_cast<size_t>(chain.q_head);
    if (shared[tile]++ != chain.addend) return false;
    if (!subject.backward()) continue;
    for (int32_t r = chain.run_begin; r < chain.run_end; ++r) {
      const Run& run = order.runs[static_cast<size_t>(r)];
      if (std::abs(run.step) != 1) return false;
      const int32_t last = run.tile(run.count - 1);
      stairs.clear();
      auto& counters = rows.try_emplace(run.q_head, order.tiles->q_tiles()).first->second;
      counters.take(std::min(run.first, last), std::max(run.first, last) + 1, stairs);
      for (const Stair& stair : stairs)
        if (!matches(run, stair)) return false;
    }
  }
  return true;
}

/// The addends of every row are 0..n-1, found visit by visit.
void check_addends(const Subject& subject) {
  const HeadOrder& order = subject.order;
  std::vector<int64_t> begin{0};  // of each row in `seen`
  for (const int32_t addends : order.row_addends) begin.push_back(begin.back() + addends);
  std::vector<bool> seen(static_cast<size_t>(begin.back() * order.group));
  for (const Task& task : order.tasks) {
    for_each_visit(order, task, [&](const Chain& chain, const Run& run, int32_t i) {
      const int32_t row = run.tile(i), addend = run.addend_of(i);
      const int32_t addends = order.row_addends[static_cast<size_t>(row)];
      if (addend < 0 || addend >= addends)
        fail(fmt::format("{} has addend {}, expected 0 to {}",
                         subject.name(chain.tile, run.q_head, row), addend, addends - 1));
      const auto place =
          static_cast<size_t>(run.q_head * begin.back() + begin[static_cast<size_t>(row)] + addend);
      if (seen[place])
        fail(fmt::format("{} has addend {}, which its row gave before",
                         subject.name(chain.tile, run.q_head, row), addend));
      seen[place] = true;
    });
  }
}

/// Returns whether the order counts up as issued; throws unless its sums are complete and ordered.
bool check_order(const Subject& subject) {
  check_ranges(subject);
  check_complete(subject);
  check_shared_tiles(subject);
  if (!subject.backward()) return counts_up_as_issued(subject);
  check_row_totals(subject);
  if (counts_up_as_issued(subject)) return true;
  check_addends(subject);
  return false;
}

/// Pairs (waiting, awaited) of tasks of one head.
std::vector<std::pair<int32_t, int32_t>> find_waits(const Plan& plan, int32_t head) {
  std::vector<PlacedTask> tasks;
  for (size_t t = 0; t < plan.order(head).tasks.size(); ++t)
    tasks.push_back({head, static_cast<int32_t>(t)});
  std::vector<Walker> sequences;
  for (const PlacedTask& task : tasks) sequences.emplace_back(plan, std::span(&task, 1));
  std::vector<std::pair<int32_t, int32_t>> waits;
  dry_run(plan, std::move(sequences), [&](const PlacedTask& waiting, int32_t awaited) {
    if (waits.empty() || waits.back() != std::pair(waiting.task, awaited))
      waits.emplace_back(waiting.task, awaited);
  });
  std::sort(waits.begin(), waits.end());
  waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
  return waits;
}

/// Every task of every head is placed once.
void check_placement(const Plan& plan) {
  const Placement& placement = plan.placement;
  const auto heads = static_cast<int32_t>(plan.order_of_head.size());
  std::vector<std::vector<bool>> placed(static_cast<size_t>(heads));
  for (int32_t h = 0; h < heads; ++h)
    placed[static_cast<size_t>(h)].resize(plan.order(h).tasks.size());
  for (const PlacedTask& task : placement.tasks) {
    const bool known = 0 <= task.head && task.head < heads && 0 <= task.task &&
                       static_cast<size_t>(task.task) < plan.order(task.head).tasks.size();
    if (!known) fail(fmt::format("task {} of head {} does not exist", task.task, task.head));
    auto seen = placed[static_cast<size_t>(task.head)][static_cast<size_t>(task.task)];
    if (seen) fail(fmt::format("task {} of head {} is placed twice", task.task, task.head));
    seen = true;
  }
  for (int32_t h = 0; h < heads; ++h) {
    const auto& tasks = placed[static_cast<size_t>(h)];
    const auto missing = std::find(tasks.begin(), tasks.end(), false);
    if (missing != tasks.end())
      fail(fmt::format("task {} of head {} is not placed", missing - tasks.begin(), h));
  }
  if (placement.workers < 1) fail("a placement needs a worker");
  const auto& begin = placement.worker_begin;
  const bool covers = begin.size() == static_cast<size_t>(placement.workers) + 1 &&
                      begin.front() == 0 && std::is_sorted(begin.begin(), begin.end()) &&
                      static_cast<size_t>(begin.back()) == placement.tasks.size();
  if (placement.queue ? !begin.empty() : !covers)
    fail("the tasks of the workers do not cover the placement");
}

/// Tasks that must be under way at once when free workers take them off the list: the largest
/// block that no earlier task waits into. `ordered[k]`: orders[k] counts up as issued.
int32_t queue_residency(const Plan& plan, const std::vector<bool>& ordered) {
  const auto& tasks = plan.placement.tasks;
  const size_t heads = plan.order_of_head.size();
  std::vector<std::vector<int32_t>> position(heads);  // [head][task]
  std::vector<bool> in_sequence(heads, true);
  for (size_t p = 0; p < tasks.size(); ++p) {
    auto& of_head = position[static_cast<size_t>(tasks[p].head)];
    of_head.resize(plan.order(tasks[p].head).tasks.size(), -1);
    const auto task = static_cast<size_t>(tasks[p].task);
    in_sequence[static_cast<size_t>(tasks[p].head)] =
        in_sequence[static_cast<size_t>(tasks[p].head)] && (task == 0 || of_head[task - 1] >= 0);
    of_head[task] = static_cast<int32_t>(p);
  }
  // Waits are a matter of one head, so heads that share order and sequence share their waits.
  std::vector<int32_t> furthest(tasks.size());  // last position that a task waits for
  std::iota(furthest.begin(), furthest.end(), 0);
  std::vector<std::optional<std::vector<std::pair<int32_t, int32_t>>>> known(plan.orders.size());
  for (size_t h = 0; h < heads; ++h) {
    const auto kind = static_cast<size_t>(plan.order_of_head[h]);
    if (ordered[kind] && in_sequence[h]) continue;
    auto& waits = known[kind];
    if (!waits) waits = find_waits(plan, static_cast<int32_t>(h));
    for (const auto& [waiting, awaited] : *waits) {
      int32_t& last = furthest[static_cast<size_t>(position[h][static_cast<size_t>(waiting)])];
      last = std::max(last, position[h][static_cast<size_t>(awaited)]);
    }
  }
  int32_t residency = 1, block_begin = 0, block_last = 0;
  for (size_t p = 0; p < tasks.size(); ++p) {
    block_last = std::max(block_last, furthest[p]);
    if (block_last != static_cast<int32_t>(p)) continue;
    residency = std::max(residency, block_last + 1 - block_begin);
    block_begin = block_last = static_cast<int32_t>(p) + 1;
  }
  return residency;
}

/// With fixed sequences every worker must run: who waits may wait for any other.
int32_t static_residency(const Plan& plan, const std::vector<bool>& ordered) {
  const Placement& placement = plan.placement;
  bool increasing = std::find(ordered.begin(), ordered.end(), false) == ordered.end();
  std::vector<Walker> sequences;
  for (int32_t w = 0; w < placement.workers; ++w) {
    const auto begin = placement.tasks.begin() + placement.worker_begin[static_cast<size_t>(w)];
    const auto end = placement.tasks.begin() + placement.worker_begin[static_cast<size_t>(w) + 1];
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

int32_t verify(const Plan& plan) {
  const size_t heads = plan.order_of_head.size();
  std::vector<bool> ordered(plan.orders.size()), checked(plan.orders.size());
  for (size_t h = 0; h < heads; ++h) {
    const int32_t kind = plan.order_of_head[h];
    if (kind < 0 || static_cast<size_t>(kind) >= plan.orders.size())
      fail(fmt::format("head {} follows order {}, which does not exist", h, kind));
    if (checked[static_cast<size_t>(kind)]) continue;
    checked[static_cast<size_t>(kind)] = true;
    const HeadOrder& order = *plan.orders[static_cast<size_t>(kind)];
    if (order.pass != plan.pass) fail(fmt::format("head {} follows an order of the other pass", h));
    ordered[static_cast<size_t>(kind)] = check_order({order, static_cast<int32_t>(h)});
  }
  check_placement(plan);
  return plan.placement.queue ? queue_residency(plan, ordered) : static_residency(plan, ordered);
}

}  // namespace verbatim
