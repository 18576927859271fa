// Waits that expire: what is told, when, and what becomes of the results.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>

#include "backend/cuda/gpu_case.h"
#include "backend/cuda/load.h"
#include "backend/cuda/report.h"

namespace verbatim::test {
namespace {

constexpr double kLimit = 0.3;  // seconds

/// `good` with a KV tile 1 that believes to be addend 2 of its rows: nobody ever is addend 1.
SharedPlan never_comes(const SharedPlan& good) {
  Plan bad = *good;
  auto order = std::make_shared<HeadOrder>(*good->orders.front());
  for (const Chain& chain : order->chains) {
    if (chain.tile != 1) continue;
    order->runs.edit([&](auto& runs) {
      for (int32_t r = chain.run_begin; r < chain.run_end; ++r) ++runs[r].addend;
    });
  }
  bad.orders = {order};
  return share(std::move(bad));
}

/// `good` with first chains of shared tiles that believe to be second: nobody ever is first.
SharedPlan part_never_comes(const SharedPlan& good) {
  Plan bad = *good;
  auto order = std::make_shared<HeadOrder>(*good->orders.front());
  int32_t changed = 0;
  for (Chain& chain : order->chains) {
    if (chain.addends > 1 && chain.addend == 0) chain.addend = 1, ++changed;
  }
  EXPECT_GT(changed, 0);
  bad.orders = {order};
  return share(std::move(bad));
}

Problem two_heads(const Mask& mask, const HeadDims& dims) {
  Problem p = problem_of(mask, dims, 1);
  p.q_heads = p.kv_heads = 2;
  return p;
}

/// Fills outputs with zeros, guards and gaps included, so that what becomes NaN was written.
void clear(const std::vector<GpuTensor*>& outputs) {
  for (GpuTensor* output : outputs) {
    std::memset(output->host.bytes().data(), 0, output->host.bytes().size());
    output->upload();
  }
}

/// What of the outputs is not as a call that gave up has to leave them: every element NaN, guards
/// and gaps as they were.
std::string not_destroyed(const std::vector<GpuTensor*>& outputs) {
  std::string wrong;
  for (size_t i = 0; i < outputs.size(); ++i) {
    GuardedTensor& host = outputs[i]->host;
    outputs[i]->download();
    int64_t numbers = 0;
    const TensorView& view = host.view();
    for (int64_t b = 0; b < view.shape[0]; ++b)
      for (int64_t l = 0; l < view.shape[1]; ++l)
        for (int64_t h = 0; h < view.shape[2]; ++h)
          for (int64_t d = 0; d < view.shape[3]; ++d) {
            numbers += !std::isnan(host.get(b, l, h, d));
            host.set(b, l, h, d, 0);
          }
    if (numbers > 0) wrong += std::to_string(numbers) + " numbers in output " + std::to_string(i);
    for (const uint8_t byte : host.bytes()) {
      if (byte != 0) return wrong + " a write outside of output " + std::to_string(i);
    }
  }
  return wrong;
}

/// Runs `launch` and looks at all that has to follow.
void expect_given_up(const char* what, const std::vector<GpuTensor*>& outputs, cudaStream_t stream,
                     const std::string& tile, const std::function<void()>& launch) {
  clear(outputs);
  const auto begin = std::chrono::steady_clock::now();
  launch();
  cuda::check(cudaStreamSynchronize(stream), "test");
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(took.count(), kLimit + 2) << what;
  EXPECT_EQ(not_destroyed(outputs), "") << what;
  const std::string message = error_of([] { gpu()->check_waits(); });
  EXPECT_NE(message.find(tile), std::string::npos) << what << ": " << message;
  EXPECT_EQ(error_of([] { gpu()->check_waits(); }), "") << what << ": told twice";
}

TEST(Waits, AReportIsToldOnceAndOnlyWhenItIsWhole) {  // needs no GPU
  cuda::WaitReport report{.state = cuda::WaitReport::claimed,
                          .pass = static_cast<int32_t>(Pass::backward),
                          .batch = 3,
                          .kv_head = 2,
                          .q_head = 1,
                          .tile = 7,
                          .addend = 5,
                          .seen = 4,
                          .residency = 32};
  EXPECT_EQ(error_of([&] { cuda::check_report(report); }), "");
  report.state = cuda::WaitReport::published;
  const std::string message = error_of([&] { cuda::check_report(report); });
  for (const char* part : {"dQ of tile 7", "batch 3", "KV head 2", "query head 1", "addend 5",
                           "addend 4 never came", "32 workers at once", "NaN"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in " << message;
  }
  EXPECT_EQ(report.state, cuda::WaitReport::free);
  EXPECT_EQ(error_of([&] { cuda::check_report(report); }), "");

  report.state = cuda::WaitReport::published;
  report.q_head = cuda::WaitReport::tickets;
  report.tile = 6;
  EXPECT_NE(error_of([&] { cuda::check_report(report); }).find("behind KV tile 6"),
            std::string::npos);
  report.state = cuda::WaitReport::published;
  report.q_head = cuda::WaitReport::keys;
  EXPECT_NE(error_of([&] { cuda::check_report(report); }).find("dK and dV of tile 6"),
            std::string::npos);
}

TEST(Waits, AnExpiredOneMakesAllGradientsNan) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const Mask mask = masks::full(512, 512);
  for (const HeadDims& dims : every_head_dims()) {
    for (const int64_t gap : {0, 8}) {
      GpuCase c(two_heads(mask, dims), mask, 1, gap);
      const SharedPlan good = c.plan(Pass::backward, "ascending"), bad = never_comes(good);
      const SharedPlan forward = c.plan(Pass::forward, "ascending");
      c.run(*gpu(), forward, good);
      const auto expected = c.bits();
      const std::vector<GpuTensor*> gradients{&c.dq, &c.dk, &c.dv};
      expect_given_up("eager", gradients, nullptr, "dQ of tile",
                      [&] { gpu()->backward(bad, c.backward(), {.wait_limit = kLimit}); });
      c.run(*gpu(), forward, good);
      EXPECT_EQ(c.bits(), expected) << "after a launch that was given up";

      // The next call tells it, whatever its plan, and the one after that works.
      gpu()->backward(bad, c.backward(), {.wait_limit = kLimit});
      cuda::check(cudaDeviceSynchronize(), "test");
      EXPECT_NE(error_of([&] { gpu()->forward(forward, c.forward(), {}); }).find("dQ of tile"),
                std::string::npos);
      c.run(*gpu(), forward, good);
      EXPECT_EQ(c.bits(), expected) << "after an error that was told";
    }
  }
}

TEST(Waits, AnExpiredOneInAGraphMakesAllGradientsNan) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const Mask mask = masks::full(512, 512);
  cudaStream_t stream;
  cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "test");
  for (const HeadDims& dims : every_head_dims()) {
    GpuCase c(two_heads(mask, dims), mask, 1);
    const SharedPlan good = c.plan(Pass::backward, "ascending");
    c.run(*gpu(), c.plan(Pass::forward, "ascending"), good);
    const auto expected = c.bits();
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "test");
    gpu()->backward(never_comes(good), c.backward(), {.stream = stream, .wait_limit = kLimit});
    cuda::check(cudaStreamEndCapture(stream, &graph), "test");
    cuda::check(cudaGraphInstantiate(&executable, graph, 0), "test");
    for (int replay = 0; replay < 2; ++replay) {
      expect_given_up("replay", {&c.dq, &c.dk, &c.dv}, stream, "dQ of tile",
                      [&] { cuda::check(cudaGraphLaunch(executable, stream), "test"); });
    }
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
    c.run(*gpu(), c.plan(Pass::forward, "ascending"), good);
    EXPECT_EQ(c.bits(), expected) << "after a replay that was given up";
  }
  cudaStreamDestroy(stream);
}

TEST(Waits, ThoseForSharedTilesExpireToo) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const Mask mask = masks::full(256, 512), rows = masks::full(256, 8192);
  for (const HeadDims& dims : every_head_dims()) {
    GpuCase c(problem_of(mask, dims, 1), mask, 2);
    const SharedPlan keys = part_never_comes(c.plan(Pass::backward, "ascending/split"));
    c.run(*gpu(), c.plan(Pass::forward, "ascending"), c.plan(Pass::backward, "ascending"));
    expect_given_up("keys", {&c.dq, &c.dk, &c.dv}, nullptr, "dK and dV of tile",
                    [&] { gpu()->backward(keys, c.backward(), {.wait_limit = kLimit}); });
    GpuCase f(two_heads(rows, dims), rows, 3);
    const SharedPlan split = part_never_comes(f.plan(Pass::forward, "ascending/split"));
    expect_given_up("rows", {&f.o, &f.lse}, nullptr, "O of tile",
                    [&] { gpu()->forward(split, f.forward(), {.wait_limit = kLimit}); });
  }
}

TEST(Waits, CtasThatFindNoRoomEndTheLaunch) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const Mask mask = masks::full(4096, 4096);  // whose 32 chains of a head rotate
  GpuCase c(problem_of(mask, 128), mask, 4);
  const SharedPlan backward = c.plan(Pass::backward, "shift", {0, 0}, "queue");
  if (gpu()->kernel_name(*backward) != "sm90.backward") GTEST_SKIP() << "several CTAs fit";
  const int all = cuda::device(0).multiprocessors;
  ASSERT_EQ(backward->residency, 32);
  ASSERT_FALSE(cuda::must_start_together(backward->residency, all));
  cudaStream_t stream;
  cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "test");
  c.run(*gpu(), c.plan(Pass::forward, "ascending"), backward, stream);
  const auto expected = c.bits();
  const std::vector<GpuTensor*> gradients{&c.dq, &c.dk, &c.dv};
  clear(gradients);
  {
    const Occupied occupied(all - 20);
    gpu()->backward(backward, c.backward(), {.stream = stream, .wait_limit = kLimit});
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(3);
    while (cudaStreamQuery(stream) == cudaErrorNotReady &&
           std::chrono::steady_clock::now() < limit) {
    }
    (void)cudaGetLastError();
    const std::string message = error_of([] { gpu()->check_waits(); });
    EXPECT_NE(message.find("a wait expired"), std::string::npos) << message;
    EXPECT_NE(message.find("32 workers at once"), std::string::npos) << message;
  }
  cuda::check(cudaStreamSynchronize(stream), "test");
  EXPECT_EQ(not_destroyed(gradients), "");
  c.run(*gpu(), c.plan(Pass::forward, "ascending"), backward, stream);
  EXPECT_EQ(c.bits(), expected);
  cudaStreamDestroy(stream);
}

TEST(Waits, ALimitIsATime) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const Mask mask = masks::full(128, 128);
  GpuCase c(two_heads(mask, 128), mask, 1);
  const SharedPlan plan = c.plan(Pass::forward, "ascending");
  for (const double limit : {-1.0, 2e9, std::nan("")}) {
    const std::string message =
        error_of([&] { gpu()->forward(plan, c.forward(), {.wait_limit = limit}); });
    EXPECT_NE(message.find("wait_limit"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace verbatim::test
