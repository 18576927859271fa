// Cases measured on an H200: the machine model must say what order cost in the kernels it was made
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

/// Calls check(result, plan) for every case of a file of bench/results, with the order and the
/// placement of that day; not for those whose documents had orders of their own.
template <class F>
void for_each_case(const char* file, F&& check) {
  const auto results =
      nlohmann::json::parse(std::ifstream(std::string(RESULTS) + file)).at("results");
  PlanOptions options;
  options.machine = make_machine("h200");
  for (const auto& result : results) {
    const Problem problem = problem_of(result.at("problem"));
    const Mask mask =
        masks::make(result.at("mask").dump(), problem.q_len, problem.kv_len, problem.kv_heads);
    if (result.at("plan").at("order") == "auto") continue;
    options.placement = result.at("plan").at("placement");
    options.order = result.at("plan").at("order");
    check(result, make_plan(problem, mask, options));
  }
}

// What order costs, as docs/lab/search.md quotes it: time with turns over time without.
TEST(Measured, PredictsWhatOrderCosts) {
  const Machine ordered = make_machine("h200");
  Machine unordered = ordered;
  unordered.ordered = false;
  double sum = 0;
  int cases = 0;
  for_each_case("h200_rested_06b1b93.json", [&](const auto& result, const Plan& plan) {
    const double predicted = simulate(plan, ordered).makespan / simulate(plan, unordered).makespan;
    const double measured = result.at("backward").at("ms").template get<double>() /
                            result.at("unordered").at("ms").template get<double>();
    EXPECT_NEAR(predicted, measured, 0.15) << result.at("name");
    sum += std::abs(predicted - measured);
    ++cases;
  });
  EXPECT_GT(cases, 30);
  EXPECT_LE(sum / cases, 0.045);
}

}  // namespace
}  // namespace verbatim
