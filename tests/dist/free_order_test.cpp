// Plans that promise no bits: no rank waits for another's sums, and the error stays that of sums in
// f32.
#include <gtest/gtest.h>

#include "dist/dist_case.h"

namespace verbatim::test {
namespace {

constexpr TileShape kTile{16, 16};
constexpr double kAllowedRatio = 2;  // FlashAttention's rule

class Free : public testing::TestWithParam<int> {};

TEST_P(Free, RanksStartTheirOwnSums) {
  const Problem problem{.q_heads = 8,
                        .kv_heads = 2,
                        .q_len = 200,
                        .kv_len = 200,
                        .head_dim = 16,
                        .head_dim_v = 16,
                        .dtype = Dtype::bf16};
  const Mask mask = every_mask(problem.kv_heads)[GetParam()];
  for (const char* order : {"auto", "descending/split:2", "shift"}) {
    DistCase c(problem, mask, kTile, order);
    c.forward.level = c.backward.level = Level::not_guaranteed;
    for (const std::string& strategy : strategy_names()) {
      for (const int32_t world : {1, 2, 5}) {
        const DistOptions options{.world = strategy == "ulysses" && world == 5 ? 4 : world,
                                  .strategy = strategy};
        SCOPED_TRACE(testing::Message() << mask.name() << " " << order << " " << to_text(options));
        const DistCase::Dealt dealt = c.deal(options);
        verify(dealt.forward);
        verify(dealt.backward);
        for (const RankPlan& rank : dealt.backward.ranks)
          for (const Step& step : rank.steps)
            if (const auto* compute = std::get_if<Compute>(&step)) {
              for (const HeadPart& own : compute->heads)
                for (const Carry& carry : own.carries) ASSERT_EQ(carry.in, -1);
            }
        for (GuardedTensor* t : c.outputs()) t->poison();
        replay(dealt.forward, c.tensors.forward());
        replay(dealt.backward, c.tensors.backward());
        const std::vector<std::string> hashes = c.tensors.hashes();
        for (const size_t kept : {0, 1, 2})
          EXPECT_EQ(hashes[kept], c.expected[kept]);  // O, LSE, dQ
        EXPECT_TRUE(c.tensors.check().within(kAllowedRatio));
      }
    }
  }
}

std::string mask_name(const testing::TestParamInfo<int>& info) {
  return every_mask(1)[info.param].name();
}
INSTANTIATE_TEST_SUITE_P(Dist, Free, testing::Range(0, 15, 3), mask_name);

}  // namespace
}  // namespace verbatim::test
