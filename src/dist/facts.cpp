#include "dist/facts.h"

#include <fmt/format.h>

#include <algorithm>
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
  Finder(const OrderPart& part, const WholeChains& chains)
      : part_(part), order_(*part.whole), chains_(chains) {}

  PartFacts find() {
    for (size_t s = 0; s < part_.stretches.size(); ++s) add(s);
    facts_.rows = rows_.take(order_.group);
    facts_.kv_tiles = joined(std::move(kv_tiles_));
    return std::move(facts_);
  }

 private:
  bool backward() const { return order_.pass == Pass::backward; }

  void add(size_t s) {
    const Stretch& stretch = part_.stretches[s];
    if (stretch.chain < 0 || stretch.count < 0 ||
        std::ssize(chains_) - stretch.chain < stretch.count)
      throw Error(
          ErrorCode::invalid_plan, "dist.verify",
          fmt::format("an order has no {} chains from {} on", stretch.count, stretch.chain));
    for (int32_t i = 0; i < stretch.count; ++i) {
      const int32_t c = stretch.chain + i;
      const Chain& chain = chains_[c];
      const Position first{chain.run_begin, 0}, last{chain.run_end, 0};
      const auto [begin, end] = visit(chain, stretch);
      if (!backward()) rows_.add(chain.q_head, chain.tile, chain.addends);
      list(s, i, c, begin == first ? nullptr : &begin, end == last ? nullptr : &end);
    }
  }

  /// From where to where the stretch has the chain.
  std::pair<Position, Position> visit(const Chain& chain, const Stretch& stretch) {
    Position begin{chain.run_end, 0}, end = begin;
    int32_t r = chain.run_begin;
    Passes passes;
    bool all = false;
    const auto visit_part = [&](int32_t q_head, int32_t heads, RunView runs) {
      if (r == chain.run_begin && stretch.end == kEnd &&
          visits_before(runs.front(), 0, stretch.begin) == 0) {
        begin = {r, 0};
        all = true;
      }
      if (all) {
        for (const Run& run : runs) visit(chain, run, q_head, heads, 0, run.count);
        r = chain.run_end;
        return;
      }
      for (int32_t h = q_head; h < q_head + heads; ++h) {
        for (Run run : runs) {
          if (end.run < chain.run_end) return;
          run.q_head = h;
          const int32_t pass = passes.next(run);
          const int32_t from = visits_before(run, pass, stretch.begin);
          const int32_t to = std::max(from, visits_before(run, pass, stretch.end));
          if (from < run.count && begin.run == chain.run_end) begin = {r, from};
          if (from < to) visit(chain, run, h, 1, from, to);
          if (to < run.count) end = {r, to};
          ++r;
        }
      }
    };
    order_.runs.for_each_repeat(chain.run_begin, chain.run_end, near_, visit_part);
    return {begin, end};
  }

  /// Visits [begin, end) of a run, by `heads` query heads.
  void visit(const Chain& chain, const Run& run, int32_t q_head, int32_t heads, int32_t begin,
             int32_t end) {
    if (backward()) {
      rows_.add(run, q_head, heads, begin, end);
      read(chain.tile, chain.tile + 1);
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

  /// Chain `c`, the i-th of stretch `s`. `begin`, `end`: not its first visit, not its last.
  void list(size_t s, int32_t i, int32_t c, const Position* begin, const Position* end) {
    const Chain& chain = chains_[c];
    const auto goes_on = [&](const PartFacts::Row& row) {
      const int32_t step = row.count == 1 && chain.tile < row.tile ? -1 : row.step;
      return row.stretch == s && row.tile + step * row.count == chain.tile &&
             row.addend == chain.addend && row.addends == chain.addends &&
             row.begins.empty() == !begin && row.ends.empty() == !end;
    };
    if (facts_.chains.empty() || !goes_on(facts_.chains.back()))
      facts_.chains.push_back({s, i, c, 0, chain.tile, 1, chain.addend, chain.addends, {}, {}});
    PartFacts::Row& row = facts_.chains.back();
    if (chain.tile < row.tile) row.step = -1;
    ++row.count;
    if (begin) row.begins.push_back(*begin);
    if (end) row.ends.push_back(*end);
  }

  const OrderPart& part_;
  const HeadOrder& order_;
  const WholeChains& chains_;
  size_t near_ = 0;
  RowSums rows_;
  std::vector<Interval> kv_tiles_;
  PartFacts facts_;
};

}  // namespace

PartFacts facts_of(const OrderPart& part, const WholeChains& chains) {
  return Finder(part, chains).find();
}

FactsOfParts facts_of(const DistPlan& plan, const std::map<const HeadOrder*, WholeChains>& chains) {
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
  for (const auto& [order, own] : chains) count += own.size();
  for_each_in_parallel(count < kChainsWorthThreads ? 1 : core_count(), std::ssize(all),
                       [&](int64_t i) {
                         auto& [part, found] = *all[static_cast<size_t>(i)];
                         found = facts_of(*part, chains.at(part->whole.get()));
                       });
  return facts;
}

}  // namespace verbatim::dist
