#include "dist/dist_case.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

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

/// What was sent is what was predicted.
void expect_bytes(const DistPlan& plan, const std::vector<RankReport>& reports) {
  for (size_t r = 0; r < reports.size(); ++r)
    EXPECT_EQ(reports[r].sent_bytes, sent_bytes(plan, static_cast<int32_t>(r)));
}

}  // namespace

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
  for (GuardedTensor* t : outputs()) t->poison();
  RunOptions run;
  run.threads = 2;
  expect_bytes(dealt.forward, replay(dealt.forward, tensors.forward(), "cpu", run));
  expect_bytes(dealt.backward, replay(dealt.backward, tensors.backward(), "cpu", run));
  EXPECT_EQ(tensors.hashes(), expected);
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
  return fmt::format("world {} strategy {} shard {} ulysses {} window {}", options.world,
                     options.strategy, options.shard, options.ulysses_size, options.ring_window);
}

}  // namespace verbatim::test
