// The executor: plans that need many workers, plans that cannot run, timelines, memory.
#include <gtest/gtest.h>

#include <memory>
#include <new>

#include "backend/cpu/cases.h"
#include "backend/cpu/passes.h"
#include "backend/cpu/plans.h"
#include "backend/executor.h"

namespace verbatim::test {
namespace {

constexpr int64_t kLength = 128;
constexpr TileShape kTile{16, 16};

Problem one_head(int64_t length = kLength) {
  return {.batch = 1,
          .q_heads = 1,
          .kv_heads = 1,
          .q_len = length,
          .kv_len = length,
          .head_dim = 16,
          .head_dim_v = 16};
}

TEST(Executor, RunsAStaticPlacementOnFewerThreadsThanWorkers) {
  const Problem p = one_head();
  Case c(p, masks::full(kLength, kLength));
  const Plan forward = forward_plan(p, c.mask, kTile);
  Plan backward = backward_plan(p, c.mask, kTile, Order::rotating);
  c.run(forward, backward, 1);
  const auto expected = c.hashes();
  Placement& placement = backward.placement;
  placement.queue = false;
  placement.workers = static_cast<int32_t>(placement.tasks.size());
  for (int32_t w = 0; w <= placement.workers; ++w) placement.worker_begin.push_back(w);
  for (const int threads : {1, 2, 5}) {
    c.run(forward, backward, threads);
    EXPECT_EQ(c.hashes(), expected);
  }
}

TEST(Executor, RefusesThreadsBelowZero) {
  const Problem p = one_head();
  Case c(p, masks::full(kLength, kLength));
  const Plan forward = forward_plan(p, c.mask, kTile);
  RunOptions run;
  run.threads = -1;
  EXPECT_THROW(cpu::run_forward(forward, c.forward(), run, cpu::kernels()), Error);
}

TEST(Executor, RefusesACycleInsteadOfHanging) {
  const Problem p = one_head();
  Case c(p, masks::full(kLength, kLength));
  Plan backward = backward_plan(p, c.mask, kTile, Order::ascending);
  // Two KV tiles, visited in sequence, swap their places in one row only: each waits for the other.
  auto order = std::make_shared<HeadOrder>(*backward.orders[0]);
  order->runs.edit([&](auto& runs) {
    std::swap(runs[order->chains[0].run_begin].addend, runs[order->chains[1].run_begin].addend);
  });
  order->tasks = {{0, 2}};  // one worker does both
  for (int32_t chain = 2; chain < static_cast<int32_t>(order->chains.size()); ++chain)
    order->tasks.push_back({chain, chain + 1});
  backward.orders[0] = order;
  std::vector<PlacedTask> tasks;
  for (int32_t t = 0; t < static_cast<int32_t>(order->tasks.size()); ++t) tasks.push_back({0, t});
  backward.placement.tasks = std::move(tasks);
  for (const int threads : {1, 3}) {
    RunOptions run;
    run.threads = threads;
    try {
      cpu::run_backward(backward, c.backward(), run, cpu::kernels());
      FAIL() << "a cycle was executed";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_plan);
    }
  }
}

TEST(Executor, PassesOnTheExceptionOfAWorker) {
  const Problem p = one_head();
  Case c(p, masks::full(kLength, kLength));
  const Plan plan = backward_plan(p, c.mask, kTile, Order::rotating);
  class Failing final : public Worker {
    void start(const PlacedTask& task) override { task_ = task.task; }
    Turn compute() override {
      if (task_ == 5) throw std::bad_alloc();
      return {};
    }
    void add() override {}
    int32_t task_ = 0;
  };
  for (const int threads : {1, 2, 8}) {
    RunOptions run;
    run.threads = threads;
    EXPECT_THROW(execute(
                     plan, {0}, [] { return std::make_unique<Failing>(); }, run),
                 std::bad_alloc);
  }
}

TEST(Executor, RecordsEveryVisitOnce) {
  const Problem p = one_head();
  Case c(p, masks::causal(kLength, kLength));
  const Plan plan = backward_plan(p, c.mask, kTile, Order::rotating);
  c.run(forward_plan(p, c.mask, kTile), plan, 1);
  Timeline timeline;
  RunOptions run;
  run.threads = 2;
  run.timeline = &timeline;
  cpu::run_backward(plan, c.backward(), run, cpu::kernels());
  std::vector<int> seen(64);
  int64_t reduced = 0;
  for (const TimelineEvent& event : timeline.events) {
    EXPECT_LE(event.begin, event.end);
    EXPECT_GE(event.begin, 0);
    EXPECT_LT(event.worker, timeline.workers);
    if (event.kind == TimelineEvent::Kind::compute) ++seen[event.q_tile * 8 + event.kv_tile];
    reduced += event.kind == TimelineEvent::Kind::reduce;
  }
  for (int q = 0; q < 8; ++q)
    for (int k = 0; k < 8; ++k) EXPECT_EQ(seen[q * 8 + k], k <= q ? 1 : 0);
  EXPECT_EQ(reduced, 36);
}

TEST(Executor, WorkspaceIsLinearInLength) {
  const auto backend = make_cpu_backend();
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    std::vector<int64_t> bytes;
    for (const int64_t n : {2048, 4096, 8192}) {
      Problem p = one_head(n);
      p.dtype = dtype;
      bytes.push_back(backend->workspace_bytes(
          backward_plan(p, masks::causal(n, n), {64, 64}, Order::descending)));
    }
    EXPECT_EQ(bytes[2] - bytes[1], 2 * (bytes[1] - bytes[0]));
    // f32 gradients are their own place; bf16 rows with several addends need four bytes each.
    const int64_t turns = 2 * (2048 / 64) * 5;  // a counter and the state of delta
    const int64_t deltas = 2048 * 4;
    const int64_t rows = dtype == Dtype::f32 ? 0 : 2048 * 16 * 4;
    EXPECT_EQ(bytes[1] - bytes[0], turns + deltas + rows);
  }
}

}  // namespace
}  // namespace verbatim::test
