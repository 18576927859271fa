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
  Finder(const OrderPart& part, const Chains& chains)
      : part_(part), order_(*part.whole), chains_(chains.whole), alike_(chains.alike) {}

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
    auto alike = std::ranges::upper_bound(alike_, way.chain, {}, &AlikeChains::chain);
    for (int32_t c = way.chain, next = c; c < until; c = next) {
      next = backward() ? alike == alike_.end() ? std::ssize(chains_) : alike++->chain : c + 1;
      next = std::min(next, until);
      const Chain& chain = chains_[c];
      const auto [begins, ends] = visit(chain, next - c, way);
      if (!backward()) rows_.add(chain.q_head, chain.tile, chain.addends);
      const bool first = begins == Position{chain.run_begin, 0};
      const bool whole = ends == Position{chain.run_end, 0};
      for (int32_t at = c, count = 0; at < next; at += count) {
        const Stretch& own = part_.stretches[s];
        count = std::min(next, own.chain + own.count) - at;
        const int32_t later = chains_[at].run_begin - chain.run_begin;  // runs
        const Position begin{begins.run + later, begins.visit}, end{ends.run + later, ends.visit};
        list(s, at - own.chain, at, count, first ? nullptr : &begin, whole ? nullptr : &end);
        if (at + count == own.chain + own.count) ++s;
      }
    }
  }

  /// From where to where the stretch has the chain, with which `count` are alike from it on.
  std::pair<Position, Position> visit(const Chain& chain, int32_t count, const Stretch& stretch) {
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
        for (const Run& run : runs) visit(chain, count, run, q_head, heads, 0, run.count);
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

  /// Chains [c, c + count), which are alike, of stretch `s` from the i-th on. `begin`, `end`: where
  /// the first does not begin with its first visit, or end with its last.
  void list(size_t s, int32_t i, int32_t c, int32_t count, const Position* begin,
            const Position* end) {
    const auto position = [&](const Position& first, const Chain& chain) {
      return Position{first.run + chain.run_begin - chains_[c].run_begin, first.visit};
    };
    for (int32_t at = 0, more = 0; at < count; at += more) {
      const Chain* chain = &chains_[c + at];
      const auto same = [&](const auto& row) {
        return row.addend == chain->addend && row.addends == chain->addends;
      };
      for (more = 1; at + more < count && same(chain[more]);) ++more;
      const auto goes_on = [&](const PartFacts::Row& row) {
        if (row.stretch != s || row.begins.empty() != !begin || row.ends.empty() != !end)
          return false;
        if (!backward()) return true;
        const int32_t step = row.count == 1 && chain->tile < row.tile ? -1 : row.step;
        return row.tile + step * row.count == chain->tile && same(row) &&
               (more == 1 || chain[1].tile == chain->tile + step);
      };
      if (facts_.chains.empty() || !goes_on(facts_.chains.back()))
        facts_.chains.push_back(
            {s, i + at, c + at, 0, chain->tile, 1, chain->addend, chain->addends, {}, {}});
      PartFacts::Row& row = facts_.chains.back();
      row.count += more;
      if (chain[more - 1].tile < row.tile) row.step = -1;
      for (int32_t n = 0; begin && n < more; ++n) row.begins.push_back(position(*begin, chain[n]));
      for (int32_t n = 0; end && n < more; ++n) row.ends.push_back(position(*end, chain[n]));
    }
  }

  const OrderPart& part_;
  const HeadOrder& order_;
  const WholeChains& chains_;
  const std::vector<AlikeChains>& alike_;
  size_t near_ = 0;
  RowSums rows_;
  std::vector<Interval> kv_tiles_;
  PartFacts facts_;
};

}  // namespace

Chains::Chains(const HeadOrder& order) : whole(order) {
  if (order.pass == Pass::backward) alike = by_chain(alike_chains(order), whole);
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
