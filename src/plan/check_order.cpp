#include "plan/check_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <ranges>

#include "plan/check_visits.h"
#include "plan/row_counters.h"
#include "plan/trails.h"

namespace verbatim {
namespace {

/// Whether `next` may be the piece of a chain that follows `piece`.
bool continues(const Chain& piece, const Chain& next) {
  return piece.pauses && next.tile == piece.tile && next.addend == int64_t{piece.addend} + 1 &&
         next.addends == piece.addends && next.apart == piece.apart;
}

/// Whether chain k, if a piece, has its neighbours, and passes on its sums where it may.
bool is_whole_or_piece(const std::vector<Chain>& chains, size_t k) {
  const Chain& chain = chains[k];
  if (chain.continues && (k == 0 || !continues(chains[k - 1], chain))) return false;
  if (chain.pauses && (k + 1 == chains.size() || !chains[k + 1].continues)) return false;
  return chain.continues || chain.apart == (chain.pauses && chain.addend > 0);
}

void check_ranges(const Subject& subject) {
  const HeadOrder& order = subject.order;
  const auto require = [&](bool ok, const char* what, size_t index) {
    if (!ok)
      refuse_plan(fmt::format("{} {} of head {} is out of range", what, index, subject.head));
  };
  const auto inside = [](int32_t begin, int32_t end, size_t size) {
    return 0 <= begin && begin <= end && static_cast<size_t>(end) <= size;
  };
  const auto group = order.group;
  if (group < 1)
    refuse_plan(fmt::format("head {} has a group of {} query heads", subject.head, group));
  std::vector<bool> in_task(order.chains.size());
  for (size_t k = 0; k < order.tasks.size(); ++k) {
    const Task& task = order.tasks[k];
    require(task.chain_begin < task.chain_end &&
                inside(task.chain_begin, task.chain_end, order.chains.size()),
            "task", k);
    for (int32_t c = task.chain_begin; c < task.chain_end; ++c) {
      require(!in_task[c], "task", k);
      in_task[c] = true;
    }
  }
  for (size_t k = 0; k < order.chains.size(); ++k) {
    const Chain& chain = order.chains[k];
    require(in_task[k] && inside(chain.run_begin, chain.run_end, order.runs.size()) &&
                0 <= chain.tile && chain.tile < subject.kept_tiles() &&
                static_cast<size_t>(std::max(chain.addends, 0)) <= order.chains.size() &&
                0 <= chain.q_head && chain.q_head < (subject.backward() ? 1 : group) &&
                (subject.backward() || !(chain.continues || chain.pauses)) &&
                is_whole_or_piece(order.chains, k),
            "chain", k);
  }
}

void check_runs(const Subject& subject) {
  const HeadOrder& order = subject.order;
  size_t k = 0;
  const auto require = [&](bool ok) {
    if (!ok) refuse_plan(fmt::format("run {} of head {} is out of range", k, subject.head));
  };
  const auto check_run = [&](const Run& run) {
    const int64_t last = run.first + (int64_t{run.count} - 1) * run.step;
    int64_t last_addend = run.addend;
    if (run.addend_step != 0)
      last_addend += (int64_t{run.count} - 1) / std::max(run.addend_every, 1) * run.addend_step;
    require(run.count > 0 && run.step != 0 && run.addend_every > 0 && 0 <= run.first &&
            run.first < subject.streamed_tiles() && 0 <= last && last < subject.streamed_tiles() &&
            0 <= run.addend && 0 <= last_addend && last_addend <= INT32_MAX);
    ++k;
  };
  RunView checked;  // which query heads repeat
  order.runs.for_each_part(0, order.runs.size(), [&](int32_t q_head, RunView runs) {
    require(0 <= q_head && q_head < order.group);
    if (runs.is(checked)) {
      k += runs.size();
      return;
    }
    std::ranges::for_each(runs, check_run);
    checked = runs;
  });
}

/// Chains, each by itself, when the tasks run in `sequence`.
std::vector<AlikeChains> one_by_one(const HeadOrder& order, const auto& sequence) {
  std::vector<AlikeChains> chains;
  chains.reserve(order.chains.size());
  for (const auto t : sequence)
    for (int32_t c = order.tasks[t].chain_begin; c < order.tasks[t].chain_end; ++c)
      chains.push_back({c, 1});
  return chains;
}

/// Chains that share a tile carry the addends 0..n-1; a tile without work has a chain of its own.
void check_shared_tiles(const Subject& subject) {
  const HeadOrder& order = subject.order;
  const size_t heads = subject.chain_heads();
  // Of more tiles than there are chains, one of the first has none.
  const size_t places =
      std::min(static_cast<size_t>(subject.kept_tiles()) * heads, order.chains.size() + 1);
  const auto place_of = [&](const Chain& chain) {
    return std::min(static_cast<size_t>(chain.tile) * heads + static_cast<size_t>(chain.q_head),
                    places - 1);
  };
  const auto fail_missing = [&](size_t place, int32_t addend) {
    refuse_plan(fmt::format(
        "{}: chain {} of its tile is missing",
        subject.name(static_cast<int32_t>(place / heads), static_cast<int32_t>(place % heads), -1),
        addend));
  };
  std::vector<int32_t> begin(places + 1);  // of each tile's chains in `seen`
  for (const Chain& chain : order.chains) ++begin[place_of(chain) + 1];
  for (size_t place = 0; place < places; ++place) {
    if (begin[place + 1] == 0) fail_missing(place, 0);
    begin[place + 1] += begin[place];
  }
  std::vector<bool> seen(order.chains.size());
  for (const Chain& chain : order.chains) {
    const size_t place = place_of(chain);
    const int32_t chains = begin[place + 1] - begin[place];
    const auto tile = [&] {
      return subject.name(chain.tile, chain.q_head,
                          chain.run_begin < chain.run_end ? order.runs[chain.run_begin].first : -1);
    };
    const auto require = [&](bool ok) {
      if (!ok)
        refuse_plan(fmt::format("{}: its chain has addend {} of {}, out of range or given twice",
                                tile(), chain.addend, chain.addends));
    };
    require(0 <= chain.addend && chain.addend < chain.addends && chains <= chain.addends);
    if (chain.addend < chains) {
      const auto slot = static_cast<size_t>(begin[place] + chain.addend);
      require(!seen[slot]);
      seen[slot] = true;
    }
    if (subject.backward()) continue;
    order.for_each_part(chain, [&](int32_t q_head, RunView) {
      if (q_head != chain.q_head)
        refuse_plan(tile() + ": a run visits another query head than its chain");
    });
  }
  for (const Chain& chain : order.chains) {
    const size_t place = place_of(chain);
    if (chain.addends == begin[place + 1] - begin[place]) continue;
    const auto first = seen.begin() + begin[place], last = seen.begin() + begin[place + 1];
    fail_missing(place, static_cast<int32_t>(std::find(first, last, false) - first));
  }
}

void check_row_totals(const Subject& subject) {
  const HeadOrder& order = subject.order;
  if (order.row_addends.size() != static_cast<size_t>(order.tiles->q_tiles()))
    refuse_plan(fmt::format("head {} counts the addends of {} rows, expected {}", subject.head,
                            order.row_addends.size(), order.tiles->q_tiles()));
  for (int32_t row = 0; row < order.tiles->q_tiles(); ++row) {
    const int64_t addends = count_tiles(order.tiles->row(row));
    if (order.row_addends[row] != addends)
      refuse_plan(fmt::format("row (head {}, q_tile {}) promises {} addends, its mask has {}",
                              subject.head, row, order.row_addends[row], addends));
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

bool counts_up_by_visits(const Trail& trail, int32_t rows) {
  std::vector<int32_t> next(rows);  // addend of each row
  for (const Step& step : trail.steps) {
    for (const Run& run : step.runs) {
      if (std::abs(run.step) != 1) return false;
      for (int32_t i = 0; i < run.count; ++i) {
        int32_t& addend = next[run.tile(i)];
        if (addend != run.addend_of(i)) return false;
        addend += step.chains;
      }
    }
  }
  return true;
}

/// Sums of tiles that chains share, as far as they are counted.
class SharedSums {
 public:
  explicit SharedSums(const Subject& subject)
      : heads_(subject.chain_heads()), next_(static_cast<size_t>(subject.kept_tiles()) * heads_) {}

  /// Whether the chain with `addend` is the next of its tile.
  bool enter(int32_t tile, int32_t q_head, int32_t addend) {
    return next_[static_cast<size_t>(tile) * heads_ + static_cast<size_t>(q_head)]++ == addend;
  }

 private:
  size_t heads_;
  std::vector<int32_t> next_;
};

/// Whether the chains of shared tiles follow each other as `issued`, each by itself.
bool shared_count_up(const Subject& subject, std::span<const AlikeChains> issued) {
  SharedSums sums(subject);
  return std::ranges::all_of(issued, [&](const AlikeChains& one) {
    const Chain& chain = subject.order.chains[one.chain];
    return sums.enter(chain.tile, chain.q_head, chain.addend);
  });
}

/// The same of rows, which are of a backward.
bool shared_count_up(const Subject& subject, std::span<const ChainRow> issued) {
  SharedSums sums(subject);
  return std::ranges::all_of(issued, [&](const ChainRow& row) {
    bool all = true;
    for (int32_t i = 0; i < row.count; ++i) all &= sums.enter(row.lowest() + i, 0, row.addend);
    return all;
  });
}

/// Whether each visit finds its row counted up to its addend.
bool rows_count_up(const Subject& subject, const std::vector<Trail>& trails) {
  if (!subject.backward()) return true;
  const int32_t rows = subject.order.tiles->q_tiles();
  std::vector<Stair> stairs;
  for (const Trail& trail : trails) {
    if (has_short_runs(subject, trail)) {
      if (!counts_up_by_visits(trail, rows)) return false;
      continue;
    }
    RowCounters counters(rows);
    for (const Step& step : trail.steps) {
      for (const Run& run : step.runs) {
        if (std::abs(run.step) != 1) return false;
        const int32_t last = run.tile(run.count - 1);
        stairs.clear();
        counters.take(std::min(run.first, last), std::max(run.first, last) + 1, stairs,
                      step.chains);
        for (const Stair& stair : stairs)
          if (!matches(run, stair)) return false;
      }
    }
  }
  return true;
}

/// The addends of every row are 0..n-1, found visit by visit.
void check_addends(const Subject& subject, const Trail& trail) {
  const HeadOrder& order = subject.order;
  std::vector<int64_t> begin{0};  // of each row in `seen`
  for (const int32_t addends : order.row_addends) begin.push_back(begin.back() + addends);
  std::vector<bool> seen(begin.back());
  const auto enter = [&](int32_t kept, int32_t row, int32_t addend) {
    const int32_t addends = order.row_addends[row];
    if (addend < 0 || addend >= addends)
      refuse_plan(fmt::format("{} has addend {}, expected 0 to {}",
                              subject.name(kept, trail.q_head, row), addend, addends - 1));
    const auto place = static_cast<size_t>(begin[row] + addend);
    if (seen[place])
      refuse_plan(fmt::format("{} has addend {}, which its row gave before",
                              subject.name(kept, trail.q_head, row), addend));
    seen[place] = true;
  };
  for (const Step& step : trail.steps)
    for (const Run& run : step.runs)
      for (int32_t i = 0; i < run.count; ++i) enter(step.kept, run.tile(i), run.addend_of(i));
}

}  // namespace

bool check_order(const Subject& subject) {
  check_ranges(subject);
  const std::vector<AlikeChains> issued =
      one_by_one(subject.order, std::views::iota(size_t{0}, subject.order.tasks.size()));
  const std::vector<Trail> trails = trails_of(subject.order, issued);
  const bool straight = is_straight(subject, trails);
  if (!straight) {
    check_runs(subject);
    for (const Trail& trail : trails) check_complete(subject, trail);
  }
  check_shared_tiles(subject);
  if (subject.backward()) check_row_totals(subject);
  if (shared_count_up(subject, issued) && (straight || rows_count_up(subject, trails))) return true;
  if (subject.backward() && !straight)
    for (const Trail& trail : trails) check_addends(subject, trail);
  return false;
}

bool counts_up(const Subject& subject, std::span<const int32_t> sequence) {
  const std::vector<AlikeChains> issued = one_by_one(subject.order, sequence);
  return shared_count_up(subject, issued) &&
         rows_count_up(subject, trails_of(subject.order, issued));
}

bool counts_up(const Subject& subject, const ChainRows& issued) {
  return shared_count_up(subject, issued.rows) &&
         rows_count_up(subject, trails_of(subject.order, issued.alike));
}

}  // namespace verbatim
