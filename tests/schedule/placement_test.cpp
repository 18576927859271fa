#include <gtest/gtest.h>

#include <set>

#include "verbatim/error.h"
#include "verbatim/schedule.h"

namespace verbatim {
namespace {

using Heads = std::vector<std::shared_ptr<const HeadOrder>>;

Heads causal_heads(int32_t heads, int64_t length) {
  const auto tiles = std::make_shared<const TileMap>(
      masks::causal(length, length).variants().front(), TileShape{16, 16});
  return Heads(static_cast<size_t>(heads), make_order(Pass::backward, "descending", tiles, 1));
}

std::vector<PlacedTask> hand(const Placement& p, int32_t worker) {
  return {p.tasks.begin() + p.worker_begin[static_cast<size_t>(worker)],
          p.tasks.begin() + p.worker_begin[static_cast<size_t>(worker) + 1]};
}

TEST(Placement, PlacesEveryTaskOnce) {
  const Heads heads = causal_heads(5, 100);
  for (const PlacementInfo& info : placements()) {
    for (const int32_t workers : {1, 3, 100}) {
      const Placement p = make_placement(info.name, heads, workers);
      EXPECT_EQ(p.name, info.name);
      EXPECT_EQ(p.workers, workers);
      std::set<std::pair<int32_t, int32_t>> seen;
      for (const PlacedTask& t : p.tasks) EXPECT_TRUE(seen.emplace(t.head, t.task).second);
      EXPECT_EQ(seen.size(), 35u) << info.name;
      EXPECT_EQ(p.worker_begin.size(), p.queue ? 0 : static_cast<size_t>(workers) + 1);
    }
  }
}

TEST(Placement, LongestFirstGoesBySize) {
  const Placement p = make_placement("longest_first", causal_heads(2, 64), 3);
  const std::vector<PlacedTask> expected{{0, 0}, {1, 0}, {0, 1}, {1, 1},
                                         {0, 2}, {1, 2}, {0, 3}, {1, 3}};
  EXPECT_EQ(p.tasks, expected);
}

TEST(Placement, HeadSwizzledWorksInSections) {
  const std::vector<PlacedTask> pairs{{0, 0}, {1, 0}, {0, 1}, {1, 1}, {2, 0}, {2, 1}};
  EXPECT_EQ(make_placement("head_swizzled:2", causal_heads(3, 32), 7).tasks, pairs);
  // Two tasks a head, four workers: two heads side by side.
  EXPECT_EQ(make_placement("head_swizzled", causal_heads(3, 32), 4).tasks, pairs);
}

TEST(Placement, AlternatingDealsLongToShort) {
  const Placement p = make_placement("alternating", causal_heads(2, 64), 4);
  for (int32_t w = 0; w < 4; ++w)
    EXPECT_EQ(hand(p, w), (std::vector<PlacedTask>{{0, w}, {1, 3 - w}}));
  const Placement q = make_placement("static", causal_heads(2, 64), 4);
  for (int32_t w = 0; w < 4; ++w) EXPECT_EQ(hand(q, w), (std::vector<PlacedTask>{{0, w}, {1, w}}));
}

TEST(Placement, PersistentSharesAreEven) {
  const Heads heads = causal_heads(4, 16 * 12);  // 4 x (12 + ... + 1) = 312 visits
  const Placement p = make_placement("persistent", heads, 6);
  for (int32_t w = 0; w < 6; ++w) {
    int64_t visits = 0;
    for (const PlacedTask& t : hand(p, w)) visits += 12 - t.task;
    EXPECT_NEAR(static_cast<double>(visits), 52, 12);
  }
}

TEST(Placement, RefusesBadRequests) {
  const Heads heads = causal_heads(1, 32);
  EXPECT_THROW(make_placement("queue", heads, 0), Error);
  EXPECT_THROW(make_placement("head_swizzled:0", heads, 2), Error);
  try {
    make_placement("longestfirst", heads, 2);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.details().nearest, "longest_first");
  }
}

}  // namespace
}  // namespace verbatim
