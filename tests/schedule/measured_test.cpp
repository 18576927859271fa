// Cases measured on an H200 (golden/measured_h200.json: commit 06b1b93, rested, with the order and
// placement of that day): the machine model must say what order cost in the kernels it was made
// for.
#include <gtest/gtest.h>

#include <cmath>
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

// What order costs, as docs/lab/search.md quotes it: time with turns over time without.
TEST(Measured, PredictsWhatOrderCosts) {
  const Machine ordered = make_machine("h200");
  Machine unordered = ordered;
  unordered.ordered = false;
  PlanOptions options;
  options.machine = ordered;
  double sum = 0;
  const auto cases = nlohmann::json::parse(std::ifstream(GOLDEN_DIR "/measured_h200.json"));
  for (const auto& one : cases) {
    const Problem problem = problem_of(one.at("problem"));
    const Mask mask =
        masks::make(one.at("mask").dump(), problem.q_len, problem.kv_len, problem.kv_heads);
    options.order = one.at("order"), options.placement = one.at("placement");
    const Plan plan = make_plan(problem, mask, options);
    const double predicted = simulate(plan, ordered).makespan / simulate(plan, unordered).makespan;
    const double measured = one.at("ms").get<double>() / one.at("unordered_ms").get<double>();
    EXPECT_NEAR(predicted, measured, 0.15) << one.at("name");
    sum += std::abs(predicted - measured);
  }
  ASSERT_GT(cases.size(), 30u);
  EXPECT_LE(sum / static_cast<double>(cases.size()), 0.045);
}

}  // namespace
}  // namespace verbatim
