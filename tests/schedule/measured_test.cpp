// The cases of bench/results/h200_rested.json: a faster planner, or a better machine model, must
// leave the bits that were measured as they are.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "verbatim/schedule.h"

namespace verbatim {
namespace {

Problem problem_of(const nlohmann::json& json) {
  return {.batch = json.at("batch"),
          .q_heads = json.at("q_heads"),
          .kv_heads = json.at("kv_heads"),
          .q_len = json.at("q_len"),
          .kv_len = json.at("kv_len"),
          .head_dim = json.at("head_dim"),
          .head_dim_v = json.at("head_dim_v"),
          .dtype = dtype_from_string(json.at("dtype").get<std::string>())};
}

TEST(Measured, PlansKeepTheirBits) {
  const auto results = nlohmann::json::parse(std::ifstream(RESULTS)).at("results");
  EXPECT_EQ(results.size(), 38u);
  PlanOptions options;
  options.machine = make_machine("h200");
  for (const auto& result : results) {
    const Problem problem = problem_of(result.at("problem"));
    const Mask mask =
        masks::make(result.at("mask").dump(), problem.q_len, problem.kv_len, problem.kv_heads);
    const Plan plan = make_plan(problem, mask, options);
    const auto& measured = result.at("plan");
    EXPECT_EQ(plan.fingerprint(), measured.at("fingerprint")) << result.at("name");
    EXPECT_EQ(plan.bytes(), measured.at("bytes")) << result.at("name");
    EXPECT_EQ(plan.placement.name, measured.at("placement")) << result.at("name");
  }
}

}  // namespace
}  // namespace verbatim
