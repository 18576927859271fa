// Distinct heads are planned on several threads: the plan is that of one.
#include <gtest/gtest.h>
#include <sched.h>

#include "core/threads.h"
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
  const Problem problem{.batch = 1,
                        .q_heads = 16,
                        .kv_heads = 8,
                        .q_len = 4096,
                        .kv_len = 4096,
                        .head_dim = 128,
                        .head_dim_v = 128,
                        .dtype = Dtype::bf16};
  const Mask mask = masks::uniform_block_sparse(4096, 4096, 64, 64, 0.4, 3, 8);
  for (const Level level : {Level::invariant, Level::gpu_to_gpu}) {
    const std::vector<std::string> all = plans(mask, problem, level);
    const OneCore one;
    ASSERT_EQ(core_count(), 1);
    EXPECT_EQ(all, plans(mask, problem, level));
  }
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
