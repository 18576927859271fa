// Any world size, strategy and sharding gives the bits of one device.
#include <gtest/gtest.h>

#include "dist/dist_case.h"

namespace verbatim::test {
namespace {

TEST(Dist, TransfersMayComeLate) {
  DistCase c(problem_of(200), masks::causal(200, 200), kTile, "descending/split:2");
  for (const std::string& strategy : strategy_names()) {
    const DistCase::Dealt dealt = c.deal({.world = 8, .strategy = strategy});
    for (uint64_t delays = 1; delays <= 8; ++delays) {
      SCOPED_TRACE(strategy + ", delays " + std::to_string(delays));
      for (GuardedTensor* t : c.outputs()) t->poison();
      replay(dealt.forward, c.tensors.forward(), "cpu", {}, delays);
      replay(dealt.backward, c.tensors.backward(), "cpu", {}, delays);
      ASSERT_EQ(c.tensors.hashes(), c.expected);
    }
  }
}

class EveryMask : public testing::TestWithParam<int> {};

TEST_P(EveryMask, HasTheBitsOfOneDevice) {
  const Problem problem = problem_of(200);
  DistCase c(problem, every_mask(problem.kv_heads)[GetParam()], kTile);
  for (const std::string& strategy : strategy_names())
    for (const int32_t world : {2, 3, 4, 8, 16}) {
      if (strategy == "ulysses" && world == 3) continue;  // 16 heads
      c.expect_same({.world = world, .strategy = strategy});
    }
}

TEST_P(EveryMask, HasThemInChunksOfRows) {
  const Problem problem = problem_of(200);
  DistCase c(problem, every_mask(problem.kv_heads)[GetParam()], kTile, "descending/rows:48");
  for (const std::string& strategy : strategy_names())
    for (const int32_t world : {2, 8}) c.expect_same({.world = world, .strategy = strategy});
}

std::string mask_name(const testing::TestParamInfo<int>& info) {
  return every_mask(1)[info.param].name();
}
INSTANTIATE_TEST_SUITE_P(Dist, EveryMask, testing::Range(0, 15), mask_name);

}  // namespace
}  // namespace verbatim::test
