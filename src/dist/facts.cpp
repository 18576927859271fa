#include "dist/facts.h"

#include <fmt/format.h>

#include <algorithm>

#include "verbatim/error.h"

namespace verbatim::dist {
namespace {

/// Numbers and counts of the addends of rows, as differences from one row to the next.
class RowSums {
 public:
  explicit RowSums(const HeadOrder& order) : heads_(static_cast<size_t>(order.group)) {}

  /// Visits [begin, end) of a run.
  void add(const Run& run, int32_t begin, int32_t end) {
    // Tiles behind each other with one addend are one range.
    const bool flat = run.addend_step == 0;
    const int32_t every = std::abs(run.step) != 1 ? 1 : flat ? run.count : run.addend_every;
    for (int32_t i = begin; i < end;) {
      const int32_t stop = std::min(end, (i / every + 1) * every);
      const auto [first, last] = std::minmax({run.tile(i), run.tile(stop - 1)});
      add(run.q_head, first, last + 1, run.addend_of(i));
      i = stop;
    }
  }

  /// `number` to the rows [first, last).
  void add(int32_t q_head, int32_t first, int32_t last, int32_t number) {
    Head& head = heads_[q_head];
    if (head.count.empty()) head.first = first;
    if (first < head.first) {
      const auto more = static_cast<size_t>(head.first - first);
      head.count.insert(head.count.begin(), more, 0);
      head.numbers.insert(head.numbers.begin(), more, 0);
      head.first = first;
    }
    const auto begin = static_cast<size_t>(first - head.first);
    const auto end = static_cast<size_t>(last - head.first);
    if (end >= head.count.size()) {
      head.count.resize(end + 1);
      head.numbers.resize(end + 1);
    }
    ++head.count[begin];
    --head.count[end];
    head.numbers[begin] += number;
    head.numbers[end] -= number;
  }

  std::vector<PartFacts::RowPart> take() const {
    std::vector<PartFacts::RowPart> rows;
    for (size_t h = 0; h < heads_.size(); ++h) {
      const Head& head = heads_[h];
      int32_t count = 0;
      int64_t numbers = 0;
      for (size_t d = 0; d < head.count.size(); ++d) {
        count += head.count[d];
        numbers += head.numbers[d];
        if (count > 0)
          rows.push_back(
              {static_cast<int32_t>(h), head.first + static_cast<int32_t>(d), count, numbers});
      }
    }
    return rows;
  }

 private:
  struct Head {
    int32_t first = 0;  // row of the first difference
    std::vector<int32_t> count;
    std::vector<int64_t> numbers;
  };

  std::vector<Head> heads_;
};

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

}  // namespace

Position start_of(const WholeChain& chain) { return {chain.run_begin, 0}; }
Position end_of(const WholeChain& chain) { return {chain.run_end, 0}; }

PartFacts facts_of(const OrderPart& part, const std::vector<WholeChain>& chains) {
  const HeadOrder& order = *part.whole;
  const bool backward = order.pass == Pass::backward;
  PartFacts facts;
  RowSums rows(order);
  std::vector<Interval> kv_tiles;
  const auto reads = [&](int32_t first, int32_t last) {
    // Mostly behind or around what came last.
    if (!kv_tiles.empty() && first <= kv_tiles.back().end && kv_tiles.back().begin <= last) {
      kv_tiles.back() = {std::min<int64_t>(kv_tiles.back().begin, first),
                         std::max<int64_t>(kv_tiles.back().end, last)};
    } else {
      kv_tiles.push_back({first, last});
    }
  };
  for (const Stretch& stretch : part.stretches) {
    if (stretch.chain < 0 || stretch.count < 0 ||
        std::ssize(chains) - stretch.chain < stretch.count)
      throw Error(
          ErrorCode::invalid_plan, "dist.verify",
          fmt::format("an order has no {} chains from {} on", stretch.count, stretch.chain));
    for (int32_t c = stretch.chain; c < stretch.chain + stretch.count; ++c) {
      const WholeChain& chain = chains[c];
      PartFacts::ChainPart own{c, end_of(chain), end_of(chain)};
      Passes passes;
      bool begun = false;
      for (int32_t r = chain.run_begin; r < chain.run_end; ++r) {
        const Run& run = order.runs[r];
        const int32_t pass = passes.next(run);
        const int32_t begin = visits_before(run, pass, stretch.begin);
        const int32_t end = std::max(begin, visits_before(run, pass, stretch.end));
        if (begin < run.count && !std::exchange(begun, true)) own.begin = {r, begin};
        if (end < run.count) {
          own.end = {r, end};
          r = chain.run_end;
        }
        if (begin == end) continue;
        if (backward) {
          rows.add(run, begin, end);
          reads(chain.tile, chain.tile + 1);
        } else if (std::abs(run.step) == 1) {
          const auto [first, last] = std::minmax({run.tile(begin), run.tile(end - 1)});
          reads(first, last + 1);
        } else {
          for (int32_t i = begin; i < end; ++i) reads(run.tile(i), run.tile(i) + 1);
        }
      }
      if (!backward) {
        const Chain& row = order.chains[c];
        rows.add(row.q_head, row.tile, row.tile + 1, row.addends);
      }
      facts.chains.push_back(own);
    }
  }
  facts.rows = rows.take();
  facts.kv_tiles = joined(std::move(kv_tiles));
  return facts;
}

}  // namespace verbatim::dist
