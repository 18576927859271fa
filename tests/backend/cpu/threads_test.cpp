// Threads between calls, and how many of them a call takes.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "backend/cpu/passes.h"
#include "backend/cpu/plans.h"
#include "core/threads.h"

namespace verbatim::test {
namespace {

/// Counts to `end` on up to `threads` threads; true if every number came once.
bool counts_to(int end, int threads) {
  std::atomic<int> next = 0;
  std::vector<std::atomic<int>> seen(end);
  in_parallel(threads, [&] {
    for (int i = next++; i < end; i = next++) ++seen[i];
  });
  return std::ranges::all_of(seen, [](const auto& times) { return times == 1; });
}

TEST(Threads, DoAllOfTheWorkOnceWhenTheyReturn) {
  for (int call = 0; call < 300; ++call) EXPECT_TRUE(counts_to(100, 1 + call % 5));
}

TEST(Threads, ServeManyCallersAndCallersInsideCalls) {
  std::vector<std::jthread> callers;
  std::atomic<int> wrong = 0;
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int call = 0; call < 50; ++call) wrong += !counts_to(100, 3);
      in_parallel(2, [&] { wrong += !counts_to(100, 3); });
    });
  }
  callers.clear();
  EXPECT_EQ(wrong, 0);
}

TEST(Threads, AForkedProcessHasItsOwn) {
  EXPECT_TRUE(counts_to(100, 3));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(counts_to(100, 3) ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

cpu_set_t my_cores() {
  cpu_set_t cores;
  EXPECT_EQ(sched_getaffinity(0, sizeof(cores), &cores), 0);
  return cores;
}
void take_cores(const cpu_set_t& cores) {
  EXPECT_EQ(sched_setaffinity(0, sizeof(cores), &cores), 0);
}

TEST(Threads, LeaveTheCoreOfWhoCalls) {
  if (core_count() < 2) GTEST_SKIP() << "one core";
  EXPECT_TRUE(counts_to(100, 2));  // the other thread is made with all cores
  const cpu_set_t all = my_cores();
  const int core = sched_getcpu();
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  take_cores(one);
  const std::thread::id caller = std::this_thread::get_id();
  constexpr int kCalls = 50;
  int apart = 0;
  for (int call = 0; call < kCalls; ++call) {
    std::atomic<bool> came = false;
    in_parallel(2, [&] {
      if (std::this_thread::get_id() == caller) {
        while (!came) std::this_thread::yield();
        return;
      }
      apart += sched_getcpu() != core;
      const cpu_set_t cores = my_cores();
      EXPECT_TRUE(CPU_EQUAL(&cores, &all)) << "it may use what it could before";
      take_cores(one);  // where the next call finds it
      take_cores(all);
      came = true;
    });
  }
  take_cores(all);
  EXPECT_GT(apart, kCalls / 2) << "the system may move a thread back";
}

Problem problem_of(int64_t batch, int64_t heads, int64_t length, int64_t head_dim) {
  return {.batch = batch,
          .q_heads = heads,
          .kv_heads = heads,
          .q_len = length,
          .kv_len = length,
          .head_dim = head_dim,
          .head_dim_v = head_dim};
}

TEST(Threads, AreAsManyAsTheWorkPaysFor) {
  const auto threads = [](const Problem& p, int asked) {
    const Mask mask = masks::causal(p.q_len, p.kv_len);
    const Plan plan = backward_plan(p, mask, {64, 64}, Order::descending);
    return cpu::worthwhile_threads(plan, {.threads = asked});
  };
  EXPECT_EQ(threads(problem_of(1, 1, 16, 16), 8), 1);
  EXPECT_EQ(threads(problem_of(1, 1, 0, 16), 8), 1);
  EXPECT_EQ(threads(problem_of(4, 8, 64, 8), 2), 1);
  EXPECT_EQ(threads(problem_of(4, 8, 64, 64), 2), 2);
  EXPECT_EQ(threads(problem_of(2, 8, 1024, 64), 8), 8);
  EXPECT_EQ(threads(problem_of(2, 8, 1024, 64), 1), 1);
}

}  // namespace
}  // namespace verbatim::test
