// Which rank holds which rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "dist/dist_case.h"

namespace verbatim::test {
namespace {

using Areas = std::vector<double>;

double area_of_rows(const HeadMask& mask, Interval rows) {
  double area = 0;
  for (Slice slice : mask.slices) {
    slice.q_begin = std::max(slice.q_begin, rows.begin);
    slice.q_end = std::min(slice.q_end, rows.end);
    if (slice.q_begin < slice.q_end) area += static_cast<double>(slice.area());
  }
  return area;
}

/// What each rank visits of a mask that all heads have.
Areas areas_of(const Sharding& sharding, const Mask& mask, int64_t kv_heads) {
  const HeadMask& head = mask.head(0, 0);
  const auto area = [&](const HeldRows& rows) {
    double sum = 0;
    for (const RowRange& range : rows.ranges()) sum += area_of_rows(head, range.rows);
    return sum;
  };
  Areas areas;
  for (const HeldRows& held : sharding.q)
    areas.push_back(area(held) * static_cast<double>(kv_heads));
  for (const MovedHeads& moved : sharding.moved) {
    const auto heads = static_cast<double>(moved.kv_heads.end - moved.kv_heads.begin);
    const HeldRows rows(std::vector<RowRange>{moved.range});
    for (size_t r = 0; r < areas.size(); ++r)
      areas[r] -= heads * area(sharding.q[r].intersect(rows));
    areas[static_cast<size_t>(moved.rank)] += heads * area(rows);
  }
  return areas;
}

Sharding balanced(const DistCase& c, int32_t world) {
  return make_sharding(c.forward, c.backward, c.tensors.mask,
                       {.world = world, .strategy = "balanced"});
}

/// The heaviest of `count` stretches of `cells`, of all ways to cut them the lightest.
double lightest(const Areas& cells, int32_t count) {
  Areas best(cells.size() + 1, std::numeric_limits<double>::infinity());
  best[0] = 0;
  for (int32_t stretch = 0; stretch < count; ++stretch) {
    Areas next = best;
    for (size_t end = 1; end <= cells.size(); ++end) {
      double last = 0;
      for (size_t begin = end; begin-- > 0;) {
        last += cells[begin];
        next[end] = std::min(next[end], std::max(best[begin], last));
      }
    }
    best = next;
  }
  return best.back();
}

// Of one batch entry `auto` cuts the rows, of the other it does not.
TEST(Sharding, EntriesMayHaveChunksOrNone) {
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{16500, 3000}, {3000, 16500}}) {
    Problem p = problem_of(16600, 4, 1, 72);
    p.batch = 2;
    const Mask mask = masks::causal(16600, 16600).with_lengths(lengths, lengths);
    PlanOptions options;
    const Plan backward = make_plan(p, mask, options);
    EXPECT_NE(backward.order(0).row_chunks.empty(), backward.order(1).row_chunks.empty());
    options.pass = Pass::forward;
    const Plan forward = make_plan(p, mask, options);
    for (const std::string& strategy : strategy_names())
      for (const std::string& shard : shard_names()) {
        const DistOptions dist{.world = 4, .strategy = strategy, .shard = shard};
        SCOPED_TRACE(to_text(dist));
        const Sharding sharding = make_sharding(forward, backward, mask, dist);
        int64_t rows = 0;
        for (const HeldRows& held : sharding.q) rows += held.size();
        EXPECT_EQ(rows, 2 * 16600);
        EXPECT_NO_THROW(verify(make_dist_plan(backward, sharding, dist)));
      }
  }
}

// Where no sums can be avoided, and heads are not worth sending.
TEST(Sharding, BalancedStretchesAreAsEvenAsTilesAllow) {
  for (const Mask& mask : {masks::causal(512, 512), masks::full(512, 512),
                           masks::causal_sliding_window(512, 512, 40)}) {
    const DistCase c(problem_of(512), mask, kTile, "descending");
    Areas cells;
    for (int64_t at = 0; at < 512; at += kTile.q)
      cells.push_back(4 * area_of_rows(mask.head(0, 0), {at, at + kTile.q}));
    for (const int32_t world : {2, 3, 4}) {
      const Sharding sharding = balanced(c, world);
      EXPECT_TRUE(sharding.moved.empty());
      EXPECT_DOUBLE_EQ(std::ranges::max(areas_of(sharding, mask, 4)), lightest(cells, world));
    }
  }
}

// Chunks of rows and documents: as many rows as edges allow.
TEST(Sharding, BalancedRanksHoldAsManyRows) {
  const std::vector<int64_t> documents{300, 20, 100, 92};
  for (const Mask& mask : {masks::causal(512, 512), masks::causal_document(documents)})
    for (const char* order : {"descending", "descending/rows:64"}) {
      if (mask.head(0, 0).q_breaks.empty() && order == std::string("descending")) continue;
      DistCase c(problem_of(512), mask, kTile, order);
      for (const int32_t world : {2, 3, 4}) {
        const Sharding sharding = balanced(c, world);
        for (const HeldRows& held : sharding.q)
          EXPECT_LE(held.size(), (512 + world - 1) / world + kTile.q) << order << ", " << world;
        c.expect_same({.world = world, .strategy = "balanced"});
      }
    }
}

// A sequence without chunks: its heads go to ranks as a whole, and no sums travel.
TEST(Sharding, BalancedHeadsGoToOtherRanks) {
  const std::vector<int64_t> documents{2304, 256};
  for (const Mask& mask : {masks::causal(2560, 2560), masks::causal_document(documents)}) {
    DistCase c(problem_of(2560, 8, 8, 8), mask, {64, 64}, "descending");
    for (const int32_t world : {2, 3, 4}) {
      const Sharding sharding = balanced(c, world);
      EXPECT_FALSE(sharding.moved.empty());
      const Areas areas = areas_of(sharding, mask, 8);
      const double all = std::accumulate(areas.begin(), areas.end(), 0.0);
      EXPECT_LT(std::ranges::max(areas), 1.05 * all / world * (world == 3 ? 9.0 / 8 : 1)) << world;
      const DistOptions options{.world = world, .strategy = "balanced"};
      for (const RankPlan& rank : c.deal(options).backward.ranks) {
        EXPECT_LE(rank.rooms.size(), 2u + mask.head(0, 0).q_breaks.size());
        for (const Step& step : rank.steps)
          if (const auto* send = std::get_if<Send>(&step)) EXPECT_TRUE(send->sums.empty());
      }
      c.expect_same(options);
    }
  }
}

// The last of the heads sees a window, too little to be worth sending; the others move.
TEST(Sharding, BalancedHeadsMoveByWhatEachSees) {
  const Problem p = problem_of(2560, 4, 4, 8);
  const Mask mask("mixed", "{}",
                  {masks::causal(2560, 2560).head(0, 0),
                   masks::causal_sliding_window(2560, 2560, 64).head(0, 0)},
                  {0, 0, 0, 1}, 1, 4);
  const DistCase c(p, mask, {64, 64}, "descending");
  const Sharding sharding = balanced(c, 3);
  std::set<int32_t> ranks;
  for (const MovedHeads& moved : sharding.moved) ranks.insert(moved.rank);
  EXPECT_EQ(ranks.size(), 3u);
}

// One rank would visit all: its only KV head does not go in parts.
TEST(Sharding, BalancedDoesNotLeaveAllToOneRank) {
  const Mask mask = masks::causal(2560, 2560);
  const DistCase c(problem_of(2560, 4, 1, 8), mask, {64, 64}, "descending");
  const Areas areas = areas_of(balanced(c, 2), mask, 1);
  EXPECT_LT(std::ranges::max(areas), 1.1 * std::ranges::min(areas));
}

// The last of four stretches of chunks would be 7/16 of a causal mask.
TEST(Sharding, BalancedChunksNeedNotLieBehindEachOther) {
  const Mask mask = masks::causal(1024, 1024);
  DistCase c(problem_of(1024), mask, kTile, "right_to_left/rows:64");
  const Sharding sharding = balanced(c, 4);
  EXPECT_LT(std::ranges::max(areas_of(sharding, mask, 4)), 1.01 * 4 * 1024 * 1025 / 2 / 4);
  for (const HeldRows& held : sharding.q) {
    EXPECT_EQ(held.size(), 256);
    for (const RowRange& range : held.ranges()) {
      EXPECT_EQ(range.rows.begin % 64, 0);
      EXPECT_EQ(range.rows.end % 64, 0);
    }
  }
  c.expect_same({.world = 4, .strategy = "balanced"});
}

}  // namespace
}  // namespace verbatim::test
