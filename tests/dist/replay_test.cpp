// Any world size, strategy and sharding gives the bits of one device.
#include <gtest/gtest.h>

#include "dist/dist_case.h"

namespace verbatim::test {
namespace {

TEST(Dist, TransfersMayComeLate) {
  DistCase c(problem_of(200), masks::causal(200, 200), kTile, "descending/split:2");
  for (const std::string& strategy : strategy_names()) {
    for (uint64_t delays = 1; delays <= 16; ++delays) {
      const DistOptions options{.world = 8, .strategy = strategy, .overlapped = delays % 2 == 0};
      const DistCase::Dealt dealt = c.deal(options);
      SCOPED_TRACE(to_text(options) + ", delays " + std::to_string(delays));
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
  const Mask mask = every_mask(problem.kv_heads)[GetParam()];
  DistCase c(problem, mask, kTile);
  for (const std::string& strategy : strategy_names())
    for (const int32_t world : {2, 3, 4, 8, 16}) {
      if (strategy == "ulysses" && world == 3) continue;  // 16 heads; 12 are below
      c.expect_same({.world = world, .strategy = strategy});
      if (world % 4 == 0) c.expect_same({.world = world, .strategy = strategy, .overlapped = true});
    }
  DistCase(problem_of(200, 12), mask, kTile).expect_same({.world = 3, .strategy = "ulysses"});
}

TEST_P(EveryMask, HasThemInChunksOfRows) {
  const Problem problem = problem_of(200);
  DistCase c(problem, every_mask(problem.kv_heads)[GetParam()], kTile, "descending/rows:48");
  for (const std::string& strategy : strategy_names())
    for (const int32_t world : {2, 8})
      for (const bool overlapped : {false, true})
        c.expect_same({.world = world,
                       .strategy = strategy,
                       .joined_heads = overlapped ? 1 : 0,
                       .overlapped = overlapped});
}

std::string mask_name(const testing::TestParamInfo<int>& info) {
  return every_mask(1)[info.param].name();
}
INSTANTIATE_TEST_SUITE_P(Dist, EveryMask, testing::Range(0, 15), mask_name);

}  // namespace
}  // namespace verbatim::test
