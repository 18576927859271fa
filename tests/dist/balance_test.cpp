#include "dist/balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace verbatim::dist {
namespace {

/// Of two ranks, each with the rows of a unit of eight heads, whose areas are 8 and `second` times
/// that of a head of the first.
std::vector<MovedHeads> moved(double second, int64_t group) {
  constexpr int64_t kRows = 8192;
  constexpr double kHead = 4096.0 * kRows;
  const std::vector<Unit> units{
      {{0, {0, kRows}}, std::vector<double>(8, kHead)},
      {{0, {kRows, 2 * kRows}}, std::vector<double>(8, second * kHead / 8)}};
  const std::vector<std::vector<int64_t>> edges{{kRows, 2 * kRows}};
  const Balance made = balance(units, edges, group, 2, true);
  EXPECT_TRUE(std::ranges::equal(made.held[0].ranges(), std::vector{units[0].range}));
  EXPECT_EQ(made.area, (8 + second) * kHead);
  int64_t heads = 0;
  for (const MovedHeads& moved : made.moved) heads += moved.kv_heads.end - moved.kv_heads.begin;
  EXPECT_EQ(made.heaviest, static_cast<double>(8 - heads) * kHead);
  return made.moved;
}

// A launch of its own costs a head without a group two heads' work here, with one of eight a
// quarter.
TEST(Balance, AHeadMovesIfItIsWorthALaunch) {
  EXPECT_TRUE(moved(6, 1).empty());
  EXPECT_EQ(moved(6, 8), (std::vector<MovedHeads>{{{0, {0, 8192}}, {7, 8}, 1}}));
}

TEST(Balance, HeadsShareALaunch) {
  EXPECT_EQ(moved(1, 1), (std::vector<MovedHeads>{{{0, {0, 8192}}, {6, 8}, 1}}));
}

TEST(Balance, NobodyMovesWhereItIsEven) { EXPECT_TRUE(moved(7.5, 8).empty()); }

}  // namespace
}  // namespace verbatim::dist
