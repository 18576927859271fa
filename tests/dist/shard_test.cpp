// Which rank holds which rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

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

/// The area of the heaviest rank's queries.
double heaviest_of(const DistPlan& plan, const HeadMask& mask) {
  double heaviest = 0;
  for (const RankPlan& rank : plan.ranks) {
    double area = 0;
    for (const RowRange& range : rank.home_q.ranges()) area += area_of_rows(mask, range.rows);
    heaviest = std::max(heaviest, area);
  }
  return heaviest;
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

TEST(Sharding, BalancedStretchesAreAsEvenAsTilesAllow) {
  const std::vector<int64_t> documents{300, 20, 100, 92};
  for (const Mask& mask :
       {masks::causal(512, 512), masks::full(512, 512), masks::causal_document(documents)}) {
    for (const char* order : {"descending", "descending/rows:64"}) {
      const DistCase c(problem_of(512), mask, kTile, order);
      const auto cells_of = [&](int64_t each) {  // edges restart with documents
        std::vector<int64_t> edges;
        int64_t begin = 0;
        for (const int64_t length :
             mask.head(0, 0).q_breaks.empty() ? std::vector<int64_t>{512} : documents) {
          for (int64_t at = 0; at < length; at += each) edges.push_back(begin + at);
          begin += length;
        }
        edges.push_back(512);
        return edges;
      };
      const auto edges = cells_of(order == std::string("descending") ? kTile.q : 64);
      Areas cells;
      for (size_t e = 1; e < edges.size(); ++e)
        cells.push_back(area_of_rows(mask.head(0, 0), {edges[e - 1], edges[e]}));
      for (const int32_t world : {2, 3, 4}) {
        const DistPlan dealt = c.deal({.world = world, .strategy = "balanced"}).backward;
        const double heaviest = heaviest_of(dealt, mask.head(0, 0)), best = lightest(cells, world);
        // Chunks that do not lie behind each other are lighter, or as stretches of tiles would be.
        if (cells.size() < 32 && 1.05 * heaviest < best) continue;
        EXPECT_DOUBLE_EQ(heaviest, best) << order << ", " << world;
      }
    }
  }
}

// The last of four stretches of chunks would be 7/16 of a causal mask.
TEST(Sharding, BalancedChunksNeedNotLieBehindEachOther) {
  const Mask mask = masks::causal(1024, 1024);
  DistCase c(problem_of(1024), mask, kTile, "right_to_left/rows:64");
  const DistOptions options{.world = 4, .strategy = "balanced"};
  const DistPlan dealt = c.deal(options).backward;
  EXPECT_LT(heaviest_of(dealt, mask.head(0, 0)), 1.01 * 1024 * 1025 / 2 / 4);
  for (const RankPlan& rank : dealt.ranks) {
    EXPECT_EQ(rank.home_q.size(), 256);
    for (const RowRange& range : rank.home_q.ranges()) {
      EXPECT_EQ(range.rows.begin % 64, 0);
      EXPECT_EQ(range.rows.end % 64, 0);
    }
  }
  c.expect_same(options);
}

}  // namespace
}  // namespace verbatim::test
