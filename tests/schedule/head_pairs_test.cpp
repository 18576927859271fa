// Which forward plans have their query heads in pairs.
#include "plan/head_pairs.h"

#include <gtest/gtest.h>

#include "plans.h"

namespace verbatim::test {
namespace {

struct Heads {
  int64_t batch, q_heads, kv_heads;
};

Plan plan_of(Heads heads, const Mask& mask) {
  PlanOptions options;
  options.machine = make_machine("h200");
  options.pass = Pass::forward;
  options.order = "descending";
  return make_plan(problem_of(mask, heads.q_heads, heads.kv_heads, heads.batch), mask, options);
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
  const Plan plan = plan_of({1, 8, 2}, blocks(2));
  ASSERT_TRUE(heads_in_pairs(plan));
  Plan other = plan;
  other.pass = Pass::backward;
  EXPECT_FALSE(heads_in_pairs(other));
  other = plan;
  other.placement.queue = false;
  EXPECT_FALSE(heads_in_pairs(other));
}

TEST(HeadPairs, AreHeadsOfATileWithTheSameVisits) {
  const Plan plan = plan_of({1, 2, 1}, blocks(1, 1000));
  ASSERT_TRUE(heads_in_pairs(plan));
  const auto changed = [&](auto&& change) {
    auto order = std::make_shared<HeadOrder>(*plan.orders[0]);
    change(order->tasks[1], order->chains[order->tasks[1].chain_begin]);
    Plan other = plan;
    other.orders[0] = order;
    return heads_in_pairs(other);
  };
  EXPECT_TRUE(changed([](Task&, Chain&) {}));
  EXPECT_FALSE(changed([](Task& task, Chain&) { ++task.chain_end; }));
  EXPECT_FALSE(changed([](Task&, Chain& chain) { --chain.run_end; }));
  EXPECT_FALSE(changed([](Task&, Chain& chain) { ++chain.tile; }));
  EXPECT_FALSE(changed([](Task&, Chain& chain) { ++chain.q_head; }));
}

// Any two neighbours of the queue that change places leave a pair that is none, and so do seconds.
TEST(HeadPairs, AreNeighboursInTheQueue) {
  const Plan plan = plan_of({1, 4, 2}, blocks(2, 1000));
  ASSERT_TRUE(heads_in_pairs(plan));
  const std::vector<PlacedTask> tasks = plan.placement.tasks.list();
  const auto swapped = [&](size_t i, size_t j) {
    std::vector<PlacedTask> changed = tasks;
    std::swap(changed[i], changed[j]);
    Plan other = plan;
    other.placement.tasks = changed;
    return heads_in_pairs(other);
  };
  for (size_t i = 0; i + 1 < tasks.size(); ++i) EXPECT_FALSE(swapped(i, i + 1)) << i;
  for (size_t i = 1; i + 2 < tasks.size(); i += 2) EXPECT_FALSE(swapped(i, i + 2)) << i;
}

}  // namespace
}  // namespace verbatim::test
