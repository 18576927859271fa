// What a launch refuses, what it survives, and what planning costs.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>

#include "backend/cuda/device_plan.h"
#include "backend/cuda/gpu_case.h"

namespace verbatim::test {
namespace {

Problem small(const Mask& mask) {
  Problem p;
  p.q_heads = 2;
  p.q_len = mask.q_len();
  p.kv_len = mask.kv_len();
  p.head_dim = p.head_dim_v = 128;
  p.dtype = Dtype::bf16;
  return p;
}

TEST(Launch, AnAddendThatNeverComesIsReportedWithItsTile) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const Mask mask = masks::full(512, 512);
  GpuCase c(small(mask), mask, 1);
  const SharedPlan good = c.plan(Pass::backward, "ascending");
  c.run(*gpu(), c.plan(Pass::forward, "ascending"), good);
  const auto expected = c.bits();

  // KV tile 1 believes to be addend 2 of its rows: nobody ever is addend 1.
  Plan bad = *good;
  auto order = std::make_shared<HeadOrder>(*good->orders.front());
  for (const Chain& chain : order->chains) {
    if (chain.tile != 1) continue;
    order->runs.edit([&](auto& runs) {
      for (int32_t r = chain.run_begin; r < chain.run_end; ++r) ++runs[r].addend;
    });
  }
  bad.orders = {order};
  const auto begin = std::chrono::steady_clock::now();
  const std::string message = error_of([&] {
    gpu()->backward(share(bad), c.backward(), {});
    gpu()->synchronize({});
  });
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
  EXPECT_NE(message.find("a wait expired: dQ of tile"), std::string::npos) << message;
  EXPECT_LT(waited.count(), 10);

  c.run(*gpu(), c.plan(Pass::forward, "ascending"), good);
  EXPECT_EQ(c.bits(), expected) << "after a launch that was given up";
}

TEST(Launch, NoWaitNeedsMoreThanTheDeviceHolds) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const Mask mask = masks::full(256, 256);
  GpuCase c(small(mask), mask, 1);
  Plan plan = *c.plan(Pass::backward, "ascending");
  plan.residency = 1 << 20;
  const std::string message = error_of([&] { gpu()->backward(share(plan), c.backward(), {}); });
  EXPECT_NE(message.find("needs more workers at once than fit"), std::string::npos) << message;
}

// A worker that held the next ticket back until its own task is over would hold up those whom that
// task waits for: with many short tasks, its own.
TEST(Launch, TasksThatWaitForLaterOnesEnd) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const std::vector<int64_t> documents{700, 130, 260, 900, 140, 131, 400, 300, 90};
  const int64_t length = std::accumulate(documents.begin(), documents.end(), int64_t{0});
  for (const Mask& mask : {masks::share_question(documents), masks::causal_document(documents),
                           masks::global_sliding(length, 300, 300)}) {
    for (const int64_t head_dim : {64, 128}) {
      GpuCase c(problem_of(mask, head_dim, 8), mask, 1);
      const SharedPlan forward = c.plan(Pass::forward, "ascending");
      for (const std::string order : {"chunked_shift", "chunked_shift/split", "shift/split",
                                      "chunked_symmetric_shift/split"}) {
        const SharedPlan head_after_head = c.plan(Pass::backward, order, {0, 0}, "queue");
        const SharedPlan side_by_side = c.plan(Pass::backward, order, {0, 0}, "head_swizzled:4");
        EXPECT_GT(side_by_side->residency, head_after_head->residency);
        c.run(*gpu(), forward, head_after_head);
        const auto bits = c.bits();
        c.run(*gpu(), forward, side_by_side);
        EXPECT_EQ(c.bits(), bits) << mask.name() << " " << order << " head dim " << head_dim;
      }
    }
  }
}

// Chains of a tile that nobody sees wait for each other, too. A worker that has many of them behind
// a chain with visits must not keep the last turn of that chain back until it knows its next visit:
// others may need the turn to reach what the empty chains wait for.
TEST(Launch, EmptyTilesHoldUpNobody) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  std::vector<int64_t> edges{0};
  while (edges.back() < 2203) edges.push_back(std::min<int64_t>(2203, edges.back() + 97));
  for (const int64_t head_dim : {64, 128}) {
    for (const uint64_t seed : {1, 2, 3, 4}) {
      const Mask mask = masks::variable_block_sparse(edges, edges, 0.05, seed, 5);
      Problem p = problem_of(mask, head_dim, 1);
      p.q_heads = 80;
      p.kv_heads = 5;
      GpuCase c(p, mask, 1);
      const SharedPlan forward = c.plan(Pass::forward, "descending");
      const auto backward = [&](const std::string& placement) {
        return c.plan(Pass::backward, "descending/split", {0, 0}, placement);
      };
      c.run(*gpu(), forward, backward("queue"));
      const auto expected = c.bits();
      c.run(*gpu(), forward, backward("longest_first"));
      EXPECT_EQ(c.bits(), expected) << "head dim " << head_dim << ", seed " << seed;
    }
  }
}

TEST(Launch, RefusesWhatNoKernelCan) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  Problem p = small(masks::full(64, 64));
  p.head_dim = 36;
  const std::string message = error_of([&] { gpu()->check(p); });
  EXPECT_NE(message.find("multiples of 8"), std::string::npos) << message;
}

TEST(Launch, EmptyAndSingleRows) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const std::vector<int64_t> none{0}, some{0, 5, 0, 1, 70, 0};
  for (const Mask& mask : {masks::full(0, 0), masks::full(0, 70), masks::full(70, 0),
                           masks::causal(1, 1), masks::causal(130, 1), masks::causal(1, 130),
                           masks::causal_document(some), masks::causal(100, 30)}) {
    for (const HeadDims& dims : every_head_dims()) {
      for (const std::string order : {"ascending", "descending/split"}) {
        Problem p = small(mask);
        p.head_dim = dims.qk;
        p.head_dim_v = dims.v;
        GpuCase c(p, mask, 9);
        c.run(*gpu(), c.plan(Pass::forward, "ascending/split"), c.plan(Pass::backward, order));
        double ratio = 0;
        EXPECT_EQ(c.examine(ratio), "") << mask.name() << " " << mask.q_len() << " x "
                                        << mask.kv_len() << ", head dims " << to_string(dims);
      }
    }
  }
}

TEST(Launch, TheCallersWorkspaceGivesTheSameBits) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const Mask mask = masks::causal(1000, 1000);
  GpuCase c(small(mask), mask, 11);
  const SharedPlan forward = c.plan(Pass::forward, "auto"),
                   backward = c.plan(Pass::backward, "auto");
  c.run(*gpu(), forward, backward);
  const auto expected = c.bits();
  const int64_t bytes = gpu()->callers_workspace_bytes(*backward);
  ASSERT_GT(bytes, 0);
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, bytes), cudaSuccess);
  ASSERT_EQ(cudaMemset(memory, 0xff, bytes), cudaSuccess);  // NaN
  RunOptions run;
  run.workspace = memory;
  run.workspace_bytes = bytes;
  c.poison();
  gpu()->forward(forward, c.forward(), {});
  gpu()->backward(backward, c.backward(), run);
  gpu()->synchronize(run);
  for (GpuTensor* output : c.outputs()) output->download();
  EXPECT_EQ(c.bits(), expected);

  run.workspace_bytes = bytes - 1;
  std::string message = error_of([&] { gpu()->backward(backward, c.backward(), run); });
  EXPECT_NE(message.find("the workspace is too small"), std::string::npos) << message;
  run.workspace_bytes = bytes;
  run.workspace = static_cast<char*>(memory) + 8;
  message = error_of([&] { gpu()->backward(backward, c.backward(), run); });
  EXPECT_NE(message.find("the workspace is not aligned"), std::string::npos) << message;
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

TEST(Launch, HostTensorsGiveTheSameBits) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const Mask mask = masks::causal(300, 300);
  GpuCase c(small(mask), mask, 4, 8);
  const SharedPlan forward = c.plan(Pass::forward, "ascending");
  const SharedPlan backward = c.plan(Pass::backward, "descending");
  c.run(*gpu(), forward, backward);
  const auto expected = c.bits();
  for (GpuTensor* output : c.outputs()) output->host.poison();
  gpu()->forward(
      forward,
      {c.q.host.view(), c.k.host.view(), c.v.host.view(), c.o.host.view(), c.lse.host.row_view()},
      {});
  gpu()->backward(
      backward,
      {c.q.host.view(), c.k.host.view(), c.v.host.view(), c.o.host.view(), c.dout.host.view(),
       c.lse.host.row_view(), c.dq.host.view(), c.dk.host.view(), c.dv.host.view()},
      {});
  EXPECT_EQ(c.bits(), expected);
}

TEST(Launch, ANanReachesOnlyTheRowsThatSeeIt) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const Mask mask = masks::causal_sliding_window(260, 260, 40);
  // The portable kernels: the Hopper ones multiply hidden zeros by whatever a document's tiles
  // hold, so there a NaN reaches all rows of its tiles (docs/kernels/backward-sm90.md).
  for (const HeadDims& dims : every_head_dims()) {
    Problem p = small(mask);
    p.kv_heads = 2;
    p.head_dim = dims.qk;
    p.head_dim_v = dims.v;
    for (int which = 0; which < 4; ++which) {
      GpuCase c(p, mask, 6);
      GpuTensor& poisoned = *std::array{&c.q, &c.k, &c.v, &c.dout}[static_cast<size_t>(which)];
      poisoned.host.set(0, 117, 1, 9, NAN);
      poisoned.upload();
      const auto portable = [&](Pass pass, const std::string& order) {
        return c.plan(pass, order, {0, 0}, "auto", 132, "sm80");
      };
      c.run(*gpu(), portable(Pass::forward, "descending"), portable(Pass::backward, "ascending"));
      double ratio = 0;
      EXPECT_EQ(c.examine(ratio), "")
          << "NaN in input " << which << ", head dims " << to_string(dims);
    }
  }
}

TEST(Launch, AKnownPlanIsFoundAgain) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const Mask mask = masks::causal(8192, 8192);
  Problem p = small(mask);
  p.q_heads = p.kv_heads = 16;
  PlanOptions options;
  options.workers = 132;
  const SharedPlan plan = share(make_plan(p, mask, options));
  const cuda::Device& device = cuda::device(0);
  const auto first = cuda::device_plan(device, plan);
  EXPECT_EQ(cuda::device_plan(device, plan), first);
  EXPECT_NE(cuda::device_plan(device, share(*plan)), first) << "a copy is another plan";
}

TEST(Launch, PlansThatChangeWithEveryCallStayWholeWhileInUse) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const Mask mask = masks::causal(2048, 2048);
  GpuCase c(small(mask), mask, 3);
  const SharedPlan backward = c.plan(Pass::backward, "descending");
  c.run(*gpu(), c.plan(Pass::forward, "descending"), backward);
  const auto expected = c.bits();
  for (GpuTensor* output : {&c.dq, &c.dk, &c.dv}) {
    output->host.poison();
    output->upload();
  }
  // Nobody has a plan after its call, and none is waited for: each is uploaded while others run.
  cudaStream_t streams[2];
  for (cudaStream_t& stream : streams) cuda::check(cudaStreamCreate(&stream), "test");
  for (int i = 0; i < 300; ++i) {
    gpu()->backward(share(*backward), c.backward(), {.stream = streams[i % 2]});
  }
  for (cudaStream_t stream : streams) {
    gpu()->synchronize({.stream = stream});
    cudaStreamDestroy(stream);
  }
  for (GpuTensor* output : c.outputs()) output->download();
  EXPECT_EQ(c.bits(), expected);
}

TEST(Launch, ARecordedBackwardTellsOfEveryVisitAndHasTheSameBits) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const Mask mask = masks::causal(1024, 1024);
  GpuCase c(small(mask), mask, 5);
  const SharedPlan backward = c.plan(Pass::backward, "descending");
  const cuda::Kernel& kernel = gpu()->kernel(*backward);
  if (!kernel.records) GTEST_SKIP() << kernel.name << " keeps no record";
  c.run(*gpu(), c.plan(Pass::forward, "descending"), backward);
  const auto expected = c.bits();
  Timeline timeline;
  gpu()->backward(backward, c.backward(), {.timeline = &timeline});
  for (GpuTensor* output : c.outputs()) output->download();
  EXPECT_EQ(c.bits(), expected);

  std::map<std::array<int32_t, 3>, int> visits;  // (q_head, q_tile, kv_tile)
  int reductions = 0;
  for (const TimelineEvent& e : timeline.events) {
    EXPECT_GE(e.begin, 0);
    EXPECT_GE(e.end, e.begin);
    reductions += e.kind == TimelineEvent::Kind::reduce;
    if (e.kind == TimelineEvent::Kind::compute) ++visits[{e.q_head, e.q_tile, e.kv_tile}];
  }
  const int64_t planned = backward->orders.front()->visits();
  EXPECT_EQ(std::ssize(visits), planned);
  EXPECT_EQ(reductions, planned);
  for (const auto& [where, times] : visits) EXPECT_EQ(times, 1);
}

}  // namespace
}  // namespace verbatim::test
