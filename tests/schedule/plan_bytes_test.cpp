// How much of the host's memory plans of block-sparse masks take, as Plan::bytes() counts it: runs,
// chains, tasks and placement are in, slices are the mask's and out.
#include <gtest/gtest.h>

#include <algorithm>

#include "plans.h"
#include "verbatim/schedule.h"

namespace verbatim::test {
namespace {

struct Blocks {
  int64_t length, block;
  double share;
};

// One KV head of each of the problems in docs/lab/planning.md: more add up.
constexpr Blocks kProblems[] = {
    {16384, 64, 0.5}, {32768, 64, 0.2}, {65536, 128, 0.1}, {131072, 128, 0.05}};

/// The most over all problems and both passes.
double most_bytes_a_visit(int64_t group) {
  double most = 0;
  for (const auto [length, block, share] : kProblems) {
    const Mask mask = masks::uniform_block_sparse(length, length, block, block, share, 1, 1);
    const Problem problem = problem_of(mask, group, 1);
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      PlanOptions options;
      options.pass = pass;
      options.machine = make_machine("h200");
      const Plan plan = make_plan(problem, mask, options);
      const auto visits = static_cast<double>(plan.order(0).visits());
      EXPECT_GT(visits, 0);
      most = std::max(most, static_cast<double>(plan.bytes()) / visits);
    }
  }
  return most;
}

// The group's heads share their runs.
TEST(PlanBytes, WithoutSlicesAreAtMostTwoAVisitOfAGroupOfEight) {
  EXPECT_LE(most_bytes_a_visit(8), 2);
}

// A run of one visit is a word of eight bytes; chains and tasks are the rest.
TEST(PlanBytes, WithoutSlicesAreAtMostEightAndAHalfAVisitOfOneHead) {
  EXPECT_LE(most_bytes_a_visit(1), 8.5);
}

}  // namespace
}  // namespace verbatim::test
