// Matchings: what they are for, tasks that hardly wait and rows that are near each other.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "plan/verify.h"
#include "plans.h"
#include "verbatim/error.h"

namespace verbatim::test {
namespace {

/// 64 KV tiles of so many query tiles, in blocks of one KV tile and two query tiles.
std::shared_ptr<const HeadOrder> order_of(const char* name, double share, uint64_t seed,
                                          int32_t rows = 128) {
  const Mask mask = masks::uniform_block_sparse(16 * rows, 2048, 32, 32, share, seed, 1);
  const auto tiles = std::make_shared<const TileMap>(mask.variants().front(), TileShape{16, 32});
  return make_order(Pass::backward, name, tiles, 1);
}

/// Over the least that eight heads, two at a time, could take.
double over_least(const char* name, double share, uint64_t seed) {
  const Plan plan = plan_of(order_of(name, share, seed), 8, "queue", 64);
  EXPECT_LE(verify(plan), 64);
  const Simulation simulated = simulate(plan, Machine::paper(2, 1, 64));
  return simulated.makespan / simulated.lower_bound;
}

TEST(Matched, TasksOfRandomBlocksHardlyWait) {
  for (const double share : {0.2, 0.5, 0.8})
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      SCOPED_TRACE(testing::Message() << "share " << share << ", seed " << seed);
      const double matched = over_least("matched", share, seed);
      EXPECT_LT(matched, 1.1);
      EXPECT_LT(matched, over_least("descending", share, seed) - 0.1);
      EXPECT_LT(matched, over_least("shift", share, seed));
    }
}

TEST(Matched, TasksHaveAboutEqualWork) {
  for (const double share : {0.2, 0.5, 0.8}) {
    const auto order = order_of("matched", share, 1);
    std::vector<int64_t> visits;
    for (const Task& task : order->tasks) {
      EXPECT_EQ(task.chain_end - task.chain_begin, 2);
      visits.push_back(order->visits(order->chains[task.chain_begin]) +
                       order->visits(order->chains[task.chain_begin + 1]));
    }
    ASSERT_EQ(visits.size(), 32u);
    const auto [least, most] = std::ranges::minmax(visits);
    EXPECT_LE(10 * (most - least), most) << share;
  }
}

TEST(Matched, TasksFollowOneFront) {
  for (const double share : {0.2, 0.5, 0.8}) {
    const int32_t rows = 512;
    const auto order = order_of("matched", share, 2, rows);
    int64_t near = 0, all = 0;
    for (const Task& task : order->tasks) {
      std::vector<int32_t> walk;
      for (int32_t c = task.chain_begin; c < task.chain_end; ++c)
        for (int32_t r = order->chains[c].run_begin; r < order->chains[c].run_end; ++r)
          for (int32_t i = 0; i < order->runs[r].count; ++i) walk.push_back(order->runs[r].tile(i));
      for (size_t i = 0; i < walk.size(); ++i) {
        const auto front = static_cast<int32_t>(2 * i * rows / walk.size()) % rows;
        const int32_t ahead = (walk[i] - front + rows) % rows;
        near += std::min(ahead, rows - ahead) < rows / 4;
        ++all;
      }
    }
    EXPECT_GT(near, 0.75 * static_cast<double>(all)) << share;
  }
}

Plan plan_of_group(const char* name, uint64_t seed) {
  const Mask mask = masks::uniform_block_sparse(512, 512, 32, 32, 0.4, seed, 1);
  const auto tiles = std::make_shared<const TileMap>(mask.variants().front(), TileShape{16, 32});
  return plan_of(make_order(Pass::backward, name, tiles, 3), 2, "queue", 300);
}

/// verify() by the waits of all sums, each of whose addends waits for the one before.
int32_t residency_of(const Plan& plan) {
  using Sum = std::array<int32_t, 4>;              // head, kind, tile, query head
  std::map<Sum, std::map<int32_t, int32_t>> adds;  // addend to the place of its task
  std::vector<int32_t> furthest;
  for (const PlacedTask& placed : plan.placement.tasks) {
    const auto place = static_cast<int32_t>(furthest.size());
    furthest.push_back(place);
    const HeadOrder& order = plan.order(placed.head);
    const Task& task = order.tasks[placed.task];
    for (int32_t c = task.chain_begin; c < task.chain_end; ++c) {
      const Chain& chain = order.chains[c];
      adds[{placed.head, 0, chain.tile, 0}][chain.addend] = place;
      for (int32_t r = chain.run_begin; r < chain.run_end; ++r) {
        const auto run = order.runs[r];
        for (int32_t i = 0; i < run.count; ++i)
          adds[{placed.head, 1, run.tile(i), run.q_head}][run.addend_of(i)] = place;
      }
    }
  }
  for (const auto& [sum, places] : adds)
    for (auto next = places.begin(); next != places.end(); ++next)
      if (next != places.begin())
        furthest[next->second] = std::max(furthest[next->second], std::prev(next)->second);
  return largest_block(furthest);
}

TEST(WaitsOfParts, AreThoseOfAllTheirSums) {
  std::mt19937 random(7);
  for (const char* name : {"matched/split", "shift/split", "symmetric_shift/split"})
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      Plan plan = plan_of_group(name, seed);
      std::vector<PlacedTask> tasks(plan.placement.tasks.begin(), plan.placement.tasks.end());
      // Somewhat out of sequence: then it matters which tasks wait for which.
      for (int swaps = 0; swaps < 4; ++swaps)
        std::swap(tasks[random() % tasks.size()], tasks[random() % tasks.size()]);
      if (seed % 2 == 0) {  // the second query head before the first
        const auto part = static_cast<ptrdiff_t>(tasks.size()) / 6;
        std::rotate(tasks.begin(), tasks.begin() + part, tasks.begin() + 2 * part);
      }
      plan.placement.tasks = PlacedTasks(tasks);
      EXPECT_EQ(verify(plan), residency_of(plan)) << name << ", seed " << seed;
    }
}

TEST(WaitsOfParts, ThatAreNotAlikeAreFound) {
  for (const char* name : {"matched/split", "shift/split"}) {
    Plan plan = plan_of_group(name, 1);
    EXPECT_NO_THROW(verify(plan)) << name;
    auto order = std::make_shared<HeadOrder>(*plan.orders[0]);
    order->runs.edit([&](auto& runs) {  // the last query head goes backwards
      for (size_t c = order->chains.size() / 3 * 2; c < order->chains.size(); ++c)
        std::reverse(runs.begin() + order->chains[c].run_begin,
                     runs.begin() + order->chains[c].run_end);
    });
    plan.orders = {order};
    EXPECT_THROW(verify(plan), Error) << name;
  }
}

}  // namespace
}  // namespace verbatim::test
