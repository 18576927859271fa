// A problem dealt to ranks that one process plays on the GPU has the bits of one device, with both
// kernel sets. Each rank computes in memory of its own that starts as NaN.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "backend/cuda/gpu_case.h"
#include "verbatim/dist.h"

namespace verbatim::test {
namespace {

/// A problem and what one device makes of it.
class Replayed {
 public:
  Replayed(const Problem& problem, const Mask& mask, const std::string& arithmetic,
           const std::string& order = "auto", int64_t gap = 0)
      : case_(problem, mask, 7, gap),
        forward_(case_.plan(Pass::forward, "auto", {0, 0}, "auto", 132, arithmetic)),
        backward_(case_.plan(Pass::backward, order, {0, 0}, "auto", 132, arithmetic)) {
    case_.run(*gpu(), forward_, backward_);
    expected_ = case_.bits();
  }

  bool moves_heads(const DistOptions& options) const {
    return !make_sharding(*forward_, *backward_, case_.mask, options).moved.empty();
  }
  void expect_same(const DistOptions& options) {
    SCOPED_TRACE(fmt::format(
        "{} {} q_len {} kv_len {} heads {}:{} of {}, world {} strategy {} "
        "shard '{}' order {}",
        forward_->arithmetic, case_.mask.name(), case_.problem.q_len, case_.problem.kv_len,
        case_.problem.q_heads, case_.problem.kv_heads, case_.problem.head_dim, options.world,
        options.strategy, options.shard, backward_->orders.front()->name));
    const Sharding sharding = make_sharding(*forward_, *backward_, case_.mask, options);
    const DistPlan forward = make_dist_plan(*forward_, sharding, options);
    const DistPlan backward = make_dist_plan(*backward_, sharding, options);
    verify(forward);
    verify(backward);
    case_.poison();
    check(forward, replay(forward, case_.forward(), "cuda"));
    check(backward, replay(backward, case_.backward(), "cuda"));
    for (GpuTensor* output : case_.outputs()) output->download();
    const auto got = case_.bits();
    constexpr const char* kNames[] = {"o", "lse", "dq", "dk", "dv"};
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i] == expected_[i]) << kNames[i];
  }

 private:
  static void check(const DistPlan& plan, const std::vector<RankReport>& reports) {
    double seconds = 0;
    for (size_t r = 0; r < reports.size(); ++r) {
      EXPECT_EQ(reports[r].sent_bytes, sent_bytes(plan, static_cast<int32_t>(r)));
      seconds += reports[r].compute_seconds;
    }
    EXPECT_GT(seconds, 0);
  }

  GpuCase case_;
  SharedPlan forward_, backward_;
  std::vector<std::vector<uint8_t>> expected_;
};

/// Head dims and the arithmetic of the kernels.
class Replay : public testing::TestWithParam<std::tuple<HeadDims, std::string>> {
 protected:
  void SetUp() override {
    if (!gpu()) GTEST_SKIP() << "no GPU";
    if (arithmetic() == "sm90" && gpu()->arithmetic() != "sm90") GTEST_SKIP() << "not Hopper";
  }
  const std::string& arithmetic() const { return std::get<1>(GetParam()); }
  Problem problem(const Mask& mask, int64_t batch = 1) const {
    return problem_of(mask, std::get<0>(GetParam()), batch);
  }
};

TEST_P(Replay, EveryMaskOnTwoFourAndEightRanks) {
  int32_t turn = 0;  // strategies take turns over masks and worlds
  for (const auto& [name, mask] : patterns(1500, 2)) {
    Replayed c(problem(mask), mask, arithmetic());
    for (const int32_t world : {2, 4, 8})
      for (size_t i = 0; i < 2; ++i)
        c.expect_same(
            {.world = world, .strategy = strategies()[turn++ % strategies().size()].name});
  }
}

TEST_P(Replay, EveryStrategyAndSharding) {
  const std::vector<int64_t> documents{700, 16, 0, 1301, 84};
  const Mask mask = masks::causal_document(documents);
  Replayed c(problem(mask), mask, arithmetic());
  for (const StrategyInfo& strategy : strategies())
    for (const ShardInfo& shard : shards())
      c.expect_same({.world = 4, .strategy = strategy.name, .shard = shard.name});
}

TEST_P(Replay, EveryOrder) {
  const Mask mask = masks::causal(1100, 1100);
  for (const char* order : {"ascending", "descending/split:2", "shift", "right_to_left/split",
                            "descending/rows:512", "ascending/split:2/rows:256"}) {
    Replayed c(problem(mask), mask, arithmetic(), order);
    for (const char* strategy : {"ring", "usp", "balanced"})
      c.expect_same({.world = 4, .strategy = strategy});
  }
}

TEST_P(Replay, HeadsInGroupsOfAnySize) {
  const Mask mask = masks::causal(900, 900);
  for (const auto& [q_heads, kv_heads] : {std::pair{8, 8}, {8, 4}, {8, 1}}) {
    Problem p = problem(mask);
    p.q_heads = q_heads;
    p.kv_heads = kv_heads;
    Replayed c(p, mask, arithmetic());
    for (const char* strategy : {"ulysses", "allgather", "balanced"})
      c.expect_same({.world = 8, .strategy = strategy});
  }
}

// A sequence without chunks: its heads go to ranks as a whole, in rooms beside what they hold.
TEST_P(Replay, HeadsThatMove) {
  const std::vector<int64_t> documents{3001, 259};
  for (const Mask& mask : {masks::causal(3260, 3260), masks::causal_document(documents)}) {
    Problem p = problem(mask);
    p.dropout = 0.1;
    Replayed c(p, mask, arithmetic(), "descending/split");
    for (const int32_t world : {2, 4}) {
      const DistOptions options{.world = world, .strategy = "balanced"};
      EXPECT_TRUE(c.moves_heads(options));
      c.expect_same(options);
    }
  }
}

TEST_P(Replay, DropoutAndSoftcapCountAsInTheWhole) {
  const std::vector<int64_t> documents{300, 777, 200};
  for (const Mask& mask : {masks::causal(1277, 1277), masks::causal_document(documents)}) {
    Problem p = problem(mask, 2);
    p.dropout = 0.2;
    p.softcap = 20;
    Replayed c(p, mask, arithmetic());
    for (const char* strategy : {"ulysses", "ring", "loongtrain", "balanced"})
      c.expect_same({.world = 4, .strategy = strategy});
  }
}

TEST_P(Replay, BatchesPaddingAndOtherLengths) {
  const Mask lengths = masks::causal(777, 1333);
  Replayed uneven(problem(lengths, 3), lengths, arithmetic());
  const std::vector<int64_t> valid{500, 900, 0};
  const Mask padded = masks::full(900, 900).with_key_lengths(valid);
  Replayed hidden(problem(padded, 3), padded, arithmetic());
  const Mask window = masks::causal_sliding_window(2000, 2000, 300);
  Replayed gaps(problem(window), window, arithmetic(), "auto", 8);
  for (const StrategyInfo& strategy : strategies())
    for (Replayed* c : {&uneven, &hidden, &gaps})
      c->expect_same({.world = 4, .strategy = strategy.name});
}

std::string name_of(const testing::TestParamInfo<Replay::ParamType>& info) {
  return fmt::format("{}_hd{}", std::get<1>(info.param), to_string(std::get<0>(info.param)));
}
INSTANTIATE_TEST_SUITE_P(Gpu, Replay,
                         testing::Combine(testing::ValuesIn(hopper_head_dims()),
                                          testing::Values("sm90", "sm80")),
                         name_of);
// Blocks of carried sums have rows of these widths, and sums of dQ those of the instance.
INSTANTIATE_TEST_SUITE_P(Padded, Replay,
                         testing::Combine(testing::Values(HeadDims(40), HeadDims(80), HeadDims(96)),
                                          testing::Values("sm90")),
                         name_of);

}  // namespace
}  // namespace verbatim::test
