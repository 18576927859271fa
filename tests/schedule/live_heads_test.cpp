// Which heads may keep their sums in the same memory.
#include "plan/live_heads.h"

#include <gtest/gtest.h>

#include <array>

#include "plans.h"

namespace verbatim::test {
namespace {

Plan plan_of(int64_t batch, int64_t q_heads, int64_t kv_heads, const Mask& mask,
             const std::string& order = "auto", const std::string& placement = "auto") {
  PlanOptions options;
  options.machine = make_machine("h200");
  options.order = order;
  options.placement = placement;
  return make_plan(problem_of(mask, q_heads, kv_heads, batch), mask, options);
}

/// The least number of other tasks between the end of any head up to h - live and the start of h;
/// negative: some head would use memory that is still in use.
int64_t least_distance(const Plan& plan, int64_t live) {
  const auto& tasks = plan.placement.tasks;
  const auto heads = static_cast<int64_t>(plan.order_of_head.size());
  int64_t least = static_cast<int64_t>(tasks.size());
  for (int64_t h = live; h < heads; ++h) {
    int64_t start = -1, end = -1;
    for (int64_t t = 0; t < static_cast<int64_t>(tasks.size()); ++t) {
      const int64_t head = tasks[t].head;
      if (head == h && start < 0) start = t;
      if (head <= h - live) end = t;
    }
    least = std::min(least, start - end - 1);
  }
  return least;
}

TEST(LiveHeads, AreAsFewAsTheDistanceAllows) {
  const Mask causal = masks::causal(4096, 4096),
             window = masks::causal_sliding_window(8192, 8192, 1024);
  for (const Plan& plan :
       {plan_of(4, 16, 16, causal), plan_of(4, 16, 16, masks::full(4096, 4096)),
        plan_of(2, 16, 16, masks::causal(8192, 8192)),
        plan_of(1, 16, 16, masks::causal(16384, 16384)), plan_of(1, 64, 8, window, "descending"),
        plan_of(32, 16, 16, masks::causal(512, 512)),
        plan_of(8, 16, 16, masks::full(2048, 2048), "shift")}) {
    const auto [live, queries] = live_heads(plan);
    const int64_t margin = plan.placement.workers / 2;
    SCOPED_TRACE(plan.placement.name);
    EXPECT_EQ(queries, plan.problem.group());  // a chain visits them all
    EXPECT_LT(live, static_cast<int32_t>(plan.order_of_head.size()));
    EXPECT_GE(least_distance(plan, live), margin);
    EXPECT_LT(least_distance(plan, live - 1), margin);
  }
}

// Eight KV heads side by side, one part of their groups after another: a part's 512 tasks lie
// between the one before and the one behind it.
TEST(LiveHeads, OfASplitGroupAreThoseOfTwoParts) {
  const Mask causal = masks::causal(8192, 8192);
  const auto queries = [&](int64_t q_heads, const std::string& order,
                           const std::string& placement = "staggered:8") {
    return live_heads(plan_of(1, q_heads, 8, causal, order, placement)).queries;
  };
  EXPECT_EQ(queries(64, "descending/split"), 2);
  EXPECT_EQ(queries(64, "descending/split:4"), 4);
  EXPECT_EQ(queries(64, "descending/split:2"), 8);
  EXPECT_EQ(queries(64, "descending"), 8);
  EXPECT_EQ(queries(64, "descending/split", "longest_first"), 8);
  EXPECT_EQ(queries(48, "descending/split:3"), 6);  // two parts do not divide them
  EXPECT_EQ(queries(56, "descending/split:4"), 7);  // parts of two, two, two and one
  // Alone, a KV head's next part follows at once, and half the workers are more than its 64 tasks:
  // three parts, and what divides eight.
  EXPECT_EQ(live_heads(plan_of(1, 8, 1, causal, "descending/split", "queue")).queries, 4);
}

TEST(LiveHeads, OfAGroupAreAllWhereChainsVisitOtherHeadsThanTheirPlaceSays) {
  const Mask causal = masks::causal(8192, 8192);
  Plan plan = plan_of(1, 64, 8, causal, "descending/split", "staggered:8");
  EXPECT_EQ(live_heads(plan).queries, 2);
  auto order = std::make_shared<HeadOrder>(*plan.orders[0]);
  order->runs.edit([](auto& runs) {
    for (verbatim::Run& run : runs) run.q_head ^= 7;  // part n visits head 7 - n
  });
  plan.orders[0] = order;
  EXPECT_EQ(verify(plan), 1);  // a valid plan, made by hand
  EXPECT_EQ(live_heads(plan).queries, 8);
}

TEST(LiveHeads, AreAllWhereAWaitCouldBeInVain) {
  const Mask causal = masks::causal(2048, 2048);
  constexpr LiveHeads kAll{128, 2};
  EXPECT_EQ(live_heads(plan_of(8, 32, 16, causal, "descending/split", "longest_first")), kAll);
  EXPECT_EQ(live_heads(plan_of(8, 32, 16, causal, "descending/split", "static")), kAll);
  Plan unordered = plan_of(8, 32, 16, causal, "descending/split", "staggered:8");
  EXPECT_LT(live_heads(unordered).heads, 128);
  unordered.level = Level::not_guaranteed;
  EXPECT_EQ(live_heads(unordered), kAll);
  const Mask padded = causal.with_key_lengths(std::array<int64_t, 8>{2048, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(live_heads(plan_of(8, 32, 16, padded, "descending/split", "queue")), kAll);
}

}  // namespace
}  // namespace verbatim::test
