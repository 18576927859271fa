// Distinct heads are planned on several threads: the plan is that of one.
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>

#include "core/threads.h"
#include "plans.h"
#include "verbatim/schedule.h"

namespace verbatim::test {
namespace {

/// Holds this thread, and how many cores the library finds, to the first core it may use.
class OneCore {
 public:
  OneCore() {
    sched_getaffinity(0, sizeof(before_), &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core)
      if (CPU_ISSET(core, &before_)) CPU_SET(core, &one);
    sched_setaffinity(0, sizeof(one), &one);
  }
  ~OneCore() { sched_setaffinity(0, sizeof(before_), &before_); }

 private:
  cpu_set_t before_;
};

std::vector<std::string> plans(const Mask& mask, const Problem& problem, Level level) {
  std::vector<std::string> found;
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    PlanOptions options;
    options.pass = pass;
    options.level = level;
    options.machine = make_machine("h200");
    const Plan plan = make_plan(problem, mask, options);
    verify(plan);
    found.push_back(to_json(plan));
  }
  return found;
}

TEST(SideBySide, PlansAreThoseOfOneCore) {
  if (core_count() == 1) GTEST_SKIP() << "one core";
  const Mask mask = masks::uniform_block_sparse(4096, 4096, 64, 64, 0.4, 3, 8);
  const Problem problem = problem_of(mask, 16, 8);
  for (const Level level : {Level::invariant, Level::gpu_to_gpu}) {
    const std::vector<std::string> all = plans(mask, problem, level);
    const OneCore one;
    ASSERT_EQ(core_count(), 1);
    EXPECT_EQ(all, plans(mask, problem, level));
  }
}

// The cuts of runs follow from how counters of irregular masks join and part, and are in the
// fingerprint: these are of the counters that knew no shortcut.
TEST(IrregularMasks, KeepTheirRuns) {
  const auto hash_of = [](int64_t block, const char* order) {
    const Mask mask = masks::uniform_block_sparse(4096, 4096, block, block, 0.4, 3, 1);
    const auto tiles = std::make_shared<const TileMap>(mask.head(0, 0), TileShape{64, 128});
    uint64_t hash = 0;
    for (const verbatim::Run& run : make_order(Pass::backward, order, tiles, 1)->runs.all())
      for (const int32_t field : {run.first, run.count, run.step, run.addend, run.addend_step,
                                  run.slice_begin, run.slice_count, run.addend_every})
        hash = (hash ^ static_cast<uint32_t>(field)) * 0x100000001b3u;
    return hash;
  };
  EXPECT_EQ(hash_of(32, "descending"), 0xdaba38cd699f9efeu);
  EXPECT_EQ(hash_of(32, "right_to_left"), 0x52631fff72d04cf2u);
  EXPECT_EQ(hash_of(32, "shift"), 0xb666f59977f3ef3eu);
  EXPECT_EQ(hash_of(64, "descending"), 0xc8aef88ae0a1624fu);
  EXPECT_EQ(hash_of(64, "right_to_left"), 0x520efeec6c02038fu);
  EXPECT_EQ(hash_of(64, "shift"), 0x44943640274817c0u);
  EXPECT_EQ(hash_of(128, "descending"), 0xe72da2075da13995u);
  EXPECT_EQ(hash_of(128, "right_to_left"), 0xba1a908dbaadff5cu);
  EXPECT_EQ(hash_of(128, "shift"), 0x24065db0c176bddeu);
}

// More tiles of an axis than a word of a run has bits for: such runs are kept whole.
TEST(IrregularMasks, MayHaveMoreTilesThanAWordNumbers) {
  const int64_t rows = (int64_t{1} << 18) + 100;
  const Mask mask = masks::uniform_block_sparse(rows, 3, 1, 1, 0.5, 1, 1);
  const Problem problem{.q_len = rows, .kv_len = 3};
  PlanOptions options;
  options.order = "ascending";
  options.tile = {1, 1};
  const Plan plan = make_plan(problem, mask, options);
  EXPECT_EQ(verify(plan), 1);
  const HeadOrder& order = plan.order(0);
  EXPECT_EQ(order.visits(), order.tiles->count());
  const std::vector<verbatim::Run> runs = order.runs.all();
  EXPECT_GT(std::ranges::max(runs, {}, &verbatim::Run::first).first, 1 << 18);
  EXPECT_EQ(Runs(runs), order.runs);
}

TEST(SideBySide, WhatTheFirstCallThrowsIsThrown) {
  std::vector<int> calls(64);
  try {
    for_each_in_parallel(4, 64, [&](int64_t i) {
      ++calls[i];
      if (i % 8 == 3) throw i;
    });
    FAIL();
  } catch (const int64_t least) {
    EXPECT_EQ(least, 3);
  }
  EXPECT_EQ(calls, std::vector<int>(64, 1));
  for_each_in_parallel(4, 0, [](int64_t) { FAIL(); });
}

}  // namespace
}  // namespace verbatim::test
