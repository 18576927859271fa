// A backward that is planned when it is first needed.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "verbatim/verbatim.h"

namespace verbatim::test {
namespace {

TEST(Deferred, BackwardIsThatOfTheConstructor) {
  const Mask mask = masks::uniform_block_sparse(700, 700, 64, 64, 0.4, 3, 2);
  Problem p;
  p.q_heads = 4;
  p.kv_heads = 2;
  p.q_len = p.kv_len = 700;
  const Attention at_once(p, mask);
  AttentionOptions options;
  options.defer_backward = true;
  const Attention deferred(p, mask, options);
  EXPECT_TRUE(deferred.has_backward());
  std::vector<const Plan*> plans(4);  // asked for at once by as many threads
  std::vector<std::thread> threads;
  for (const Plan*& plan : plans)
    threads.emplace_back([&] { plan = &deferred.plan(Pass::backward); });
  for (std::thread& thread : threads) thread.join();
  for (const Plan* plan : plans) EXPECT_EQ(plan, &at_once.plan(Pass::backward));
  EXPECT_EQ(&deferred.plan(Pass::forward), &at_once.plan(Pass::forward));
  for (const Pass pass : {Pass::forward, Pass::backward})
    EXPECT_EQ(deferred.workspace_bytes(pass), at_once.workspace_bytes(pass));
}

std::string refusal(const Problem& problem, const Mask& mask, AttentionOptions options) {
  options.defer_backward = true;
  try {
    const Attention attention(problem, mask, options);
  } catch (const Error& error) {
    return error.details().argument;
  }
  return "";
}

// Before any forward runs.
TEST(Deferred, WhatIsNamedIsRefusedByTheConstructor) {
  const Mask mask = masks::causal(300, 300);
  Problem p;
  p.q_len = p.kv_len = 300;
  EXPECT_EQ(refusal(p, mask, {}), "");
  AttentionOptions options;
  options.plan.order = "no_such";
  EXPECT_EQ(refusal(p, mask, options), "order");
  options = {};
  options.plan.placement = "no_such";
  EXPECT_EQ(refusal(p, mask, options), "placement");
}

}  // namespace
}  // namespace verbatim::test
