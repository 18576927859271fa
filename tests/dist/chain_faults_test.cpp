// Chains of a distributed plan that are cut, go on or end elsewhere than their launches say.
#include <algorithm>

#include "dist/faults.h"

namespace verbatim::test {
namespace {

TEST(DistFaults, AChainThatIsCutElsewhere) {
  const auto expect = [](const std::function<void(OrderPart&)>& how) {
    expect_refused<Compute>(any<Compute>,
                            [&](std::vector<Step>& steps, size_t at) { change(steps[at], how); });
  };
  expect([](OrderPart& part) { ++part.stretches.front().begin.pass; });
  expect([](OrderPart& part) { part.stretches.back().end = part.stretches.back().begin; });
  expect([](OrderPart& part) { --part.stretches.back().count; });
  expect([](OrderPart& part) { ++part.stretches.back().count; });
  expect([](OrderPart& part) { ++part.stretches.front().chain; });
  expect([](OrderPart& part) { part.stretches.back().chain = 1 << 20; });
  expect([](OrderPart& part) { part.whole = std::make_shared<HeadOrder>(*part.whole); });
}

TEST(DistFaults, AChainThatGoesOnFromElsewhere) {
  const auto goes_on = [](const Compute& compute) {
    return compute.heads.front().carries.front().in >= 0;
  };
  const DistPlan good = backward_plan();
  const auto places = find<Compute>(good, goes_on);
  ASSERT_GT(places.size(), 0u);
  for (const auto& [rank, step] : places) {
    DistPlan bad = good;
    change(bad.ranks[rank].steps[step],
           [](OrderPart& part) { ++part.stretches.front().begin.pass; });
    EXPECT_NE(refusal(bad).find("does not go on where it was"), std::string::npos) << refusal(bad);
  }
}

/// Of two complete chains that go on behind their first run the second has another.
TEST(DistFaults, ACompleteChainThatGoesOnWithVisits) {
  std::vector<uint8_t> dense(64 * 32);  // [query, key]: tiles [4, 2]
  for (const auto& [q_tile, kv_tile] : {std::pair{0, 0}, {1, 0}, {0, 1}, {2, 1}, {3, 1}})
    for (int i = 0; i < 16 * 16; ++i)
      dense[(q_tile * 16 + i / 16) * 32 + kv_tile * 16 + i % 16] = 1;
  Problem problem = problem_of(64, 1, 1);
  problem.kv_len = 32;
  const DistCase c(problem, masks::from_dense(dense, 64, 32), kTile, "ascending");
  DistPlan good = c.deal({.world = 1, .strategy = "ring"}).backward;
  good.sections.clear();
  // As where dK and dV do not lie as K and V: sums are left, and another launch ends them.
  const size_t only = find<Compute>(good, any<Compute>).front().second;
  std::vector<Step>& listed = good.ranks[0].steps;
  std::get<Compute>(listed[only]).heads[0].carries = {{-1, 0}};
  listed.insert(listed.begin() + static_cast<std::ptrdiff_t>(only) + 1, Add{{0, 0, {0}}, 2});
  good.ranks[0].blocks = 2;
  ASSERT_EQ(refusal(good), "");
  const HeadOrder& order = c.backward.order(0);
  ASSERT_EQ(order.chains.size(), 2u);
  ASSERT_EQ(order.chains[0].run_end, 1);
  ASSERT_EQ(order.chains[1].run_end, 3);
  const auto again_from = [&](const Place& place) {
    DistPlan plan = good;
    std::vector<Step>& steps = plan.ranks[0].steps;
    const size_t launch = find<Compute>(good, any<Compute>).front().second;
    repeat(steps, launch);
    change(steps[launch + 1], [&](OrderPart& part) {
      ASSERT_EQ(part.stretches.size(), 1u);
      part.stretches[0].begin = place;
    });
    Carry& carry = std::get<Compute>(steps[launch + 1]).heads[0].carries[0];
    carry.in = carry.out;
    return refusal(plan);
  };
  EXPECT_EQ(again_from({1, 0}), "");
  const std::string of_second = again_from({0, 2});
  EXPECT_NE(of_second.find("chain 0 of KV tile 1 of head 0 does not go on where it was"),
            std::string::npos)
      << of_second;
}

TEST(DistFaults, ChainsThatEndInTheirLaunch) {
  const DistCase c(problem_of(64, 2, 2), masks::causal(64, 64), kTile, "descending");
  DistPlan good = c.deal({.world = 2, .strategy = "ulysses"}).backward;
  good.sections.clear();
  ASSERT_EQ(refusal(good), "");
  for (const RankPlan& rank : good.ranks) {
    EXPECT_EQ(rank.blocks, 0);
    EXPECT_TRUE(std::ranges::none_of(
        rank.steps, [](const Step& step) { return std::holds_alternative<Add>(step); }));
  }
  const auto [rank, launch] = find<Compute>(good, any<Compute>).front();
  {
    DistPlan plan = good;  // another launch ends them, too
    std::vector<Step>& steps = plan.ranks[rank].steps;
    steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(launch) + 1, Add{{0, 1, {0}}, 1});
    plan.ranks[rank].blocks = 1;
    EXPECT_NE(refusal(plan).find("is added up twice"), std::string::npos) << refusal(plan);
  }
  {
    DistPlan plan = good;
    RankPlan& own = plan.ranks[rank];
    own.kv = HeldRows(std::vector<RowRange>{{0, {0, 64}}, {0, {80, 96}}});
    EXPECT_NE(refusal(plan).find("do not lie as K and V"), std::string::npos) << refusal(plan);
  }
  {
    DistPlan plan = good;  // the first visit alone
    change(plan.ranks[rank].steps[launch], [](OrderPart& part) {
      part.stretches.front().end = {0, 1};
    });
    EXPECT_NE(refusal(plan).find("with a chain that is not all of it"), std::string::npos)
        << refusal(plan);
  }
}

}  // namespace
}  // namespace verbatim::test
