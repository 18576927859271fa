#include "dist/dist_case.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "verbatim/error.h"

namespace verbatim::test {
namespace {

Plan plan_of(const Problem& problem, const Mask& mask, Pass pass, TileShape tile,
             const std::string& order) {
  PlanOptions options;
  options.pass = pass;
  options.tile = tile;
  if (pass == Pass::backward) options.order = order;
  options.machine = make_machine("cpu");
  return make_plan(problem, mask, options);
}

/// Whether what was sent is what was predicted.
bool as_predicted(const DistPlan& plan, const std::vector<RankReport>& reports) {
  for (size_t r = 0; r < reports.size(); ++r)
    if (reports[r].sent_bytes != sent_bytes(plan, static_cast<int32_t>(r))) return false;
  return true;
}

uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* value = std::getenv(variable);
  return value ? std::stoull(value) : otherwise;
}

}  // namespace

Problem problem_of(int64_t length, int64_t q_heads, int64_t kv_heads, int64_t dim) {
  return {.q_heads = q_heads,
          .kv_heads = kv_heads,
          .q_len = length,
          .kv_len = length,
          .head_dim = dim,
          .head_dim_v = dim,
          .dtype = Dtype::bf16};
}

DistCase::DistCase(const Problem& problem, const Mask& mask, TileShape tile,
                   const std::string& order)
    : tensors(problem, mask),
      forward(plan_of(problem, mask, Pass::forward, tile, order)),
      backward(plan_of(problem, mask, Pass::backward, tile, order)) {
  tensors.run(forward, backward);
  expected = tensors.hashes();
}

DistCase::Dealt DistCase::deal(const DistOptions& options) const {
  const Sharding sharding = make_sharding(forward, backward, tensors.mask, options);
  return {make_dist_plan(forward, sharding, options), make_dist_plan(backward, sharding, options)};
}

std::array<GuardedTensor*, 5> DistCase::outputs() {
  return {&tensors.o, &tensors.lse, &tensors.dq, &tensors.dk, &tensors.dv};
}

void DistCase::expect_same(const DistOptions& options) {
  SCOPED_TRACE(to_text(options) + " " + tensors.describe());
  const Dealt dealt = deal(options);
  ASSERT_NO_THROW(verify(dealt.forward));
  ASSERT_NO_THROW(verify(dealt.backward));
  poison_outputs();
  RunOptions run;
  run.threads = 2;
  EXPECT_TRUE(as_predicted(dealt.forward, replay(dealt.forward, tensors.forward(), "cpu", run)));
  EXPECT_TRUE(as_predicted(dealt.backward, replay(dealt.backward, tensors.backward(), "cpu", run)));
  EXPECT_EQ(tensors.hashes(), expected);
}

bool DistCase::run_in(dist::Processes& processes, const DistOptions& options) {
  const Dealt dealt = deal(options);
  poison_outputs();
  const auto backend = make_backend("cpu");
  const auto run = [&](const DistPlan& plan, const dist::LocalTensors& whole) {
    return as_predicted(plan, processes.run(plan, whole, *backend, {.threads = 1}).reports);
  };
  const bool forward_good = run(dealt.forward, dist::whole_tensors(tensors.forward()));
  return run(dealt.backward, dist::whole_tensors(tensors.backward())) && forward_good;
}

void DistCase::poison_outputs() {
  for (GuardedTensor* t : {&tensors.o, &tensors.lse, &tensors.dq, &tensors.dk, &tensors.dv})
    t->poison();
}

std::string refusal(const DistPlan& plan) {
  try {
    verify(plan);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_plan);
    return error.what();
  }
  return "";
}

std::vector<const Compute*> launches_of(const RankPlan& rank) {
  std::vector<const Compute*> launches;
  for (const Step& step : rank.steps)
    if (const auto* compute = std::get_if<Compute>(&step)) launches.push_back(compute);
  return launches;
}

std::vector<std::string> strategy_names() {
  std::vector<std::string> names;
  for (const StrategyInfo& info : strategies()) names.emplace_back(info.name);
  return names;
}

std::vector<std::string> shard_names() {
  std::vector<std::string> names;
  for (const ShardInfo& info : shards()) names.emplace_back(info.name);
  return names;
}

std::string to_text(const DistOptions& options) {
  return fmt::format("world {} strategy {} shard {} ulysses {} window {} joined {} {}",
                     options.world, options.strategy, options.shard, options.ulysses_size,
                     options.ring_window, options.joined_heads,
                     options.overlapped ? "overlapped" : "in turn");
}

DrawnCases::DrawnCases(uint64_t usual)
    : seed(number_from("VERBATIM_DIST_SEED", 1)),
      first(number_from("VERBATIM_DIST_CASE", 0)),
      end(first + number_from("VERBATIM_DIST_CASES", usual)) {}

std::string DrawnCases::text(uint64_t number) const {
  return fmt::format("VERBATIM_DIST_SEED={} VERBATIM_DIST_CASE={} VERBATIM_DIST_CASES=1", seed,
                     number);
}

}  // namespace verbatim::test
