#include "dist/facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/threads.h"
#include "dist/row_sums.h"
#include "verbatim/error.h"

namespace verbatim::dist {
namespace {

constexpr size_t kChainsWorthThreads = 16384;  // fewer are looked at before threads wake

std::vector<Interval> joined(std::vector<Interval> ranges) {
  std::ranges::sort(ranges, {}, &Interval::begin);
  std::vector<Interval> all;
  for (const Interval& range : ranges) {
    if (!all.empty() && range.begin <= all.back().end) {
      all.back().end = std::max(all.back().end, range.end);
    } else {
      all.push_back(range);
    }
  }
  return all;
}

class Finder {
 public:
  Finder(const OrderPart& part, const Chains& chains)
      : part_(part), order_(*part.whole), chains_(chains.whole), of_(chains.rows) {}

  PartFacts find() {
    const std::vector<Stretch>& all = part_.stretches;
    for (const Stretch& stretch : all) check(stretch);
    for (size_t s = 0, next = 1; s < all.size(); s = next++) {
      while (next < all.size() && goes_on(all[next - 1], all[next])) ++next;
      add(s, next);
    }
    facts_.rows = rows_.take(order_.group);
    facts_.kv_tiles = joined(std::move(kv_tiles_));
    return std::move(facts_);
  }

 private:
  bool backward() const { return order_.pass == Pass::backward; }

  void check(const Stretch& stretch) const {
    if (stretch.chain < 0 || stretch.count < 0 ||
        std::ssize(chains_) - stretch.chain < stretch.count)
      throw Error(
          ErrorCode::invalid_plan, "dist.verify",
          fmt::format("an order has no {} chains from {} on", stretch.count, stretch.chain));
  }
  static bool goes_on(const Stretch& before, const Stretch& stretch) {
    return before.chain + before.count == stretch.chain && before.begin == stretch.begin &&
           before.end == stretch.end;
  }

  /// Stretches [s, last), of chains behind each other from one place to one other.
  void add(size_t s, size_t last) {
    const Stretch& way = part_.stretches[s];
    const int32_t until = part_.stretches[last - 1].chain + part_.stretches[last - 1].count;
    auto alike = std::ranges::upper_bound(of_.alike, way.chain, {}, &AlikeChains::chain);
    row_ = std::ranges::upper_bound(of_.rows, way.chain, {}, &ChainRow::end);
    for (int32_t c = way.chain, next = c; c < until; c = next) {
      next = backward() ? alike == of_.alike.end() ? std::ssize(chains_) : alike++->chain : c + 1;
      next = std::min(next, until);
      const Chain& chain = chains_[c];
      const auto [begin, end] = visit(chain, next - c, way);
      if (!backward()) rows_.add(chain.q_head, chain.tile, chain.addends);
      const bool whole = end == Position{chain.run_end - chain.run_begin, 0};
      PartFacts::Row row{{}, s, 0, begin, whole ? std::nullopt : std::optional(end)};
      for (int32_t at = c; at < next; at += row.count) {
        const Stretch& own = part_.stretches[s];
        row.stretch = s;
        row.offset = at - own.chain;
        static_cast<ChainRow&>(row) = chains_from(at, std::min(next, own.chain + own.count));
        if (row.count > 0) list(row);
        if (at + row.count == own.chain + own.count) ++s;
      }
    }
  }

  /// The row of chain c, from it on and before `end`.
  ChainRow chains_from(int32_t c, int32_t end) {
    while (backward() && row_->end() <= c) ++row_;
    ChainRow row = backward() ? *row_ : row_of(chains_[c], c);
    row.tile = row.tile_of(c);
    row.count = std::min(row.end(), end) - c;
    row.chain = c;
    return row;
  }

  /// From where to where the stretch has the chain, with which `count` are alike from it on.
  std::pair<Position, Position> visit(const Chain& chain, int32_t count, const Stretch& stretch) {
    const int32_t runs_of_chain = chain.run_end - chain.run_begin;
    Position begin{runs_of_chain, 0}, end = begin;
    int32_t r = 0;
    Passes passes;
    bool all = false;
    const auto visit_part = [&](int32_t q_head, int32_t heads, RunView runs) {
      if (r == 0 && stretch.end == kEnd && visits_before(runs.front(), 0, stretch.begin) == 0) {
        begin = {};
        all = true;
      }
      if (all) {
        for (const Run& run : runs) visit(chain, count, run, q_head, heads, 0, run.count);
        r = runs_of_chain;
        return;
      }
      for (int32_t h = q_head; h < q_head + heads; ++h) {
        for (Run run : runs) {
          if (end.run < runs_of_chain) return;
          run.q_head = h;
          const int32_t pass = passes.next(run);
          const int32_t from = visits_before(run, pass, stretch.begin);
          const int32_t to = std::max(from, visits_before(run, pass, stretch.end));
          if (from < run.count && begin.run == runs_of_chain) begin = {r, from};
          if (from < to) visit(chain, count, run, h, 1, from, to);
          if (to < run.count) end = {r, to};
          ++r;
        }
      }
    };
    order_.runs.for_each_repeat(chain.run_begin, chain.run_end, near_, visit_part);
    return {begin, end};
  }

  /// Visits [begin, end) of a run, by `heads` query heads.
  void visit(const Chain& chain, int32_t count, const Run& run, int32_t q_head, int32_t heads,
             int32_t begin, int32_t end) {
    if (backward()) {
      rows_.add(run, q_head, heads, begin, end, count);
      const auto [first, last] = std::minmax({chain.tile, (&chain)[count - 1].tile});
      read(first, last + 1);
    } else if (std::abs(run.step) == 1) {
      const auto [first, last] = std::minmax({run.tile(begin), run.tile(end - 1)});
      read(first, last + 1);
    } else {
      for (int32_t i = begin; i < end; ++i) read(run.tile(i), run.tile(i) + 1);
    }
  }

  void read(int64_t first, int64_t last) {
    // Mostly behind or around what came last.
    if (!kv_tiles_.empty() && first <= kv_tiles_.back().end && kv_tiles_.back().begin <= last) {
      Interval& range = kv_tiles_.back();
      range = {std::min(range.begin, first), std::max(range.end, last)};
    } else {
      kv_tiles_.push_back({first, last});
    }
  }

  /// Adds chains of a stretch, to those before if these go on so.
  void list(const PartFacts::Row& more) {
    const auto goes_on = [&](const PartFacts::Row& row) {
      if (row.stretch != more.stretch || row.begin != more.begin || row.next != more.next)
        return false;
      if (!backward()) return true;
      const int32_t step = row.count == 1 && more.tile < row.tile ? -1 : row.step;
      return row.tile + step * row.count == more.tile && row.addend == more.addend &&
             row.addends == more.addends && (more.count == 1 || more.step == step);
    };
    if (facts_.chains.empty() || !goes_on(facts_.chains.back())) {
      facts_.chains.push_back(more);
      return;
    }
    PartFacts::Row& row = facts_.chains.back();
    row.count += more.count;
    if (more.tile < row.tile) row.step = -1;
  }

  const OrderPart& part_;
  const HeadOrder& order_;
  const WholeChains& chains_;
  const ChainRows& of_;
  std::vector<ChainRow>::const_iterator row_;  // of the chain looked at
  size_t near_ = 0;                            // in the order's runs
  RowSums rows_;
  std::vector<Interval> kv_tiles_;
  PartFacts facts_;
};

}  // namespace

Chains::Chains(const HeadOrder& order) {
  if (order.pass == Pass::forward) {
    whole = WholeChains(order);
  } else {
    std::tie(whole, rows) = by_chain(order, rows_of_chains(order));
  }
}

PartFacts facts_of(const OrderPart& part, const Chains& chains) {
  return Finder(part, chains).find();
}

FactsOfParts facts_of(const DistPlan& plan, const std::map<const HeadOrder*, Chains>& chains) {
  FactsOfParts facts;
  std::vector<FactsOfParts::value_type*> all;
  const auto heads = std::ssize(plan.whole.order_of_head);
  for (const RankPlan& rank : plan.ranks) {
    for (const Step& step : rank.steps) {
      const auto* compute = std::get_if<Compute>(&step);
      if (!compute) continue;
      for (const HeadPart& own : compute->heads) {
        if (own.head < 0 || own.head >= heads ||
            own.part->whole.get() != &plan.whole.order(own.head))
          continue;
        const auto [at, fresh] = facts.try_emplace(own.part.get());
        if (fresh) all.push_back(&*at);
      }
    }
  }
  size_t count = 0;
  for (const auto& [order, own] : chains) count += own.whole.size();
  for_each_in_parallel(count < kChainsWorthThreads ? 1 : core_count(), std::ssize(all),
                       [&](int64_t i) {
                         auto& [part, found] = *all[static_cast<size_t>(i)];
                         found = facts_of(*part, chains.at(part->whole.get()));
                       });
  return facts;
}

}  // namespace verbatim::dist
