#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "verbatim/verbatim.h"

namespace verbatim {
namespace {

Problem problem_of(int64_t length) {
  Problem p;
  p.q_heads = p.kv_heads = 2;
  p.q_len = p.kv_len = length;
  return p;
}

std::shared_ptr<const Plan> plan_of(std::vector<int64_t> documents,
                                    const PlanOptions& options = {}) {
  const Mask mask = masks::causal_document(documents);
  return cached_plan(problem_of(mask.q_len()), mask, options);
}

TEST(PlanCache, OnePlanForEqualProblemsAndNoOther) {
  const auto plan = plan_of({100, 200, 300});
  EXPECT_EQ(plan_of({100, 200, 300}), plan);
  EXPECT_NE(plan_of({200, 100, 300}), plan);  // the same sizes, other documents
  PlanOptions options;
  options.pass = Pass::forward;
  EXPECT_EQ(plan_of({100, 200, 300}, options)->pass, Pass::forward);
  options = {};
  options.order = "ascending";
  EXPECT_EQ(plan_of({100, 200, 300}, options)->orders[0]->name, "ascending");
  options = {};
  options.machine = make_machine("h200");
  EXPECT_EQ(plan_of({100, 200, 300}, options)->placement.workers, 132);
  const Attention a(problem_of(600), masks::causal_document(std::vector<int64_t>{100, 200, 300}));
  const Attention b(problem_of(600), masks::causal_document(std::vector<int64_t>{100, 200, 300}));
  EXPECT_EQ(&a.plan(Pass::backward), &b.plan(Pass::backward));
}

TEST(PlanCache, KeepsTheLastUsed) {
  const auto used = plan_of({1, 1000}), idle = plan_of({2, 1000});
  for (int64_t i = 0; i < 63; ++i) {
    plan_of({500 + i, 1000});
    EXPECT_EQ(plan_of({1, 1000}), used);
  }
  const auto again = plan_of({2, 1000});
  EXPECT_NE(again, idle);
  EXPECT_EQ(again->fingerprint(), idle->fingerprint());
}

// Masks that change in every step, of which each takes an eighth of a gibibyte, here by its name.
TEST(PlanCache, KeepsNoMoreThanAGibibyte) {
  constexpr int64_t kMost = int64_t{1} << 30, kOfOne = kMost / 8;
  const auto mask_of = [](int64_t step) {
    std::string name = std::to_string(step);
    name.resize(kOfOne, ' ');
    return Mask(std::move(name), "{}", masks::full(64, 64).head(0, 0));
  };
  const auto plan_under = [](const Mask& mask) { return cached_plan(problem_of(64), mask, {}); };
  const Mask usual = mask_of(0);
  const auto used = plan_under(usual);
  std::vector<std::weak_ptr<const Plan>> plans;
  for (int64_t step = 1; step < 12; ++step) {
    const Mask mask = mask_of(step);
    plans.push_back(plan_under(mask));
    EXPECT_EQ(plan_under(usual), used);
    EXPECT_EQ(plan_under(mask), plans.back().lock());
  }
  const auto stay = std::ranges::count_if(plans, [](const auto& plan) { return !plan.expired(); });
  EXPECT_EQ(stay, 6);  // beside the usual one, for each takes a little more than its name
}

// Whatever they take: a step asks for them in turn.
TEST(PlanCache, KeepsBothPassesOfAMask) {
  std::string name(int64_t{1} << 30, ' ');
  const Mask mask(std::move(name), "{}", masks::full(64, 64).head(0, 0));
  PlanOptions forward;
  forward.pass = Pass::forward;
  const auto one = cached_plan(problem_of(64), mask, forward);
  const auto other = cached_plan(problem_of(64), mask, {});
  EXPECT_EQ(cached_plan(problem_of(64), mask, forward), one);
  EXPECT_EQ(cached_plan(problem_of(64), mask, {}), other);
}

TEST(PlanCache, ThreadsAgree) {
  std::vector<std::shared_ptr<const Plan>> plans(8);
  {
    std::vector<std::jthread> threads;
    for (auto& plan : plans) threads.emplace_back([&plan] { plan = plan_of({77, 3000}); });
  }
  for (const auto& plan : plans) EXPECT_EQ(plan, plans[0]);
}

TEST(MakePlan, TakesMasksOfItsBatchAndHeadsAlone) {
  Problem problem = problem_of(8);
  problem.batch = 2;
  const Mask full = masks::full(8, 8);
  const auto refused = [&](const Mask& mask) -> std::string {
    try {
      make_plan(problem, mask, {});
      return "";
    } catch (const Error& error) {
      return error.details().got;
    }
  };
  const Mask four = full.with_key_lengths(std::vector<int64_t>{8, 8, 8, 8});
  EXPECT_EQ(refused(four), "batch 4, 1 KV heads");
  EXPECT_EQ(refused(full.with_key_lengths(std::vector<int64_t>{8, 7})), "");
  const auto of_heads = [&](int64_t heads) {
    return Mask("full", "{}", full.variants(), std::vector<int32_t>(heads, 0), 1, heads);
  };
  EXPECT_EQ(refused(of_heads(4)), "batch 1, 4 KV heads");
  EXPECT_EQ(refused(of_heads(2)), "");
  EXPECT_THROW(Attention(problem, four), Error);
}

}  // namespace
}  // namespace verbatim
