// Which forward plans have their query heads in pairs.
#include "plan/head_pairs.h"

#include <gtest/gtest.h>

#include "verbatim/schedule.h"

namespace verbatim::test {
namespace {

struct Heads {
  int64_t batch, q_heads, kv_heads;
};

Plan plan_of(Heads heads, const Mask& mask, Pass pass = Pass::forward,
             const std::string& placement = "auto") {
  PlanOptions options;
  options.machine = make_machine("h200");
  options.pass = pass;
  options.order = "descending";
  options.placement = placement;
  const Problem problem{.batch = heads.batch,
                        .q_heads = heads.q_heads,
                        .kv_heads = heads.kv_heads,
                        .q_len = mask.q_len(),
                        .kv_len = mask.kv_len(),
                        .head_dim = 128,
                        .head_dim_v = 128,
                        .dtype = Dtype::bf16};
  return make_plan(problem, mask, options);
}

Mask blocks(int64_t kv_heads, int64_t length = 4000) {
  return masks::uniform_block_sparse(length, length, 64, 64, 0.3, 7, kv_heads);
}

TEST(HeadPairs, AreThoseOfEvenGroups) {
  for (const auto& [heads, expected] : {std::pair{Heads{1, 64, 8}, true},
                                        {Heads{2, 8, 2}, true},
                                        {Heads{1, 2, 1}, true},
                                        {Heads{1, 12, 2}, true},
                                        {Heads{1, 8, 8}, false},
                                        {Heads{2, 6, 2}, false},
                                        {Heads{1, 9, 3}, false},
                                        {Heads{1, 1, 1}, false}}) {
    SCOPED_TRACE(std::to_string(heads.q_heads) + ":" + std::to_string(heads.kv_heads));
    EXPECT_EQ(heads_in_pairs(plan_of(heads, blocks(heads.kv_heads))), expected);
  }
}

TEST(HeadPairs, AreTheForwardsAndThoseOfAQueue) {
  EXPECT_FALSE(heads_in_pairs(plan_of({1, 8, 2}, blocks(2), Pass::backward)));
  Plan plan = plan_of({1, 8, 2}, blocks(2));
  ASSERT_TRUE(heads_in_pairs(plan));
  plan.placement.queue = false;
  EXPECT_FALSE(heads_in_pairs(plan));
}

// Any two neighbours of the queue that change places leave a pair that is none.
TEST(HeadPairs, AreNeighboursInTheQueue) {
  const Plan plan = plan_of({1, 4, 2}, blocks(2, 1000));
  ASSERT_TRUE(heads_in_pairs(plan));
  const std::vector<PlacedTask> tasks = plan.placement.tasks.list();
  for (size_t i = 0; i + 1 < tasks.size(); ++i) {
    std::vector<PlacedTask> swapped = tasks;
    std::swap(swapped[i], swapped[i + 1]);
    Plan other = plan;
    other.placement.tasks = swapped;
    EXPECT_FALSE(heads_in_pairs(other)) << i;
  }
}

}  // namespace
}  // namespace verbatim::test
