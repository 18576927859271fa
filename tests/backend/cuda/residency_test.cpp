// Plans that need several workers at once, on streams that have fewer, and beside one another.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <latch>
#include <memory>
#include <optional>
#include <thread>

#include "backend/cuda/contexts.h"
#include "backend/cuda/device_plan.h"
#include "backend/cuda/gpu_case.h"
#include "backend/cuda/load.h"
#include "backend/cuda/plan_bytes.h"
#include "verbatim/verbatim.h"

namespace verbatim::test {
namespace {

constexpr double kLimit = 5;  // seconds

/// Gradients of a case beside its own, so that several streams can work at once.
struct Gradients {
  GpuTensor dq, dk, dv;

  explicit Gradients(const Problem& p)
      : dq(p.dtype, {p.batch, p.q_len, p.q_heads, p.head_dim}),
        dk(p.dtype, {p.batch, p.kv_len, p.kv_heads, p.head_dim}),
        dv(p.dtype, {p.batch, p.kv_len, p.kv_heads, p.head_dim_v}) {}

  BackwardTensors of(const GpuCase& c) const {
    BackwardTensors tensors = c.backward();
    tensors.dq = dq.view(), tensors.dk = dk.view(), tensors.dv = dv.view();
    return tensors;
  }
  std::vector<std::vector<uint8_t>> bits() {
    std::vector<std::vector<uint8_t>> all;
    for (GpuTensor* x : {&dq, &dk, &dv}) {
      x->download();
      all.push_back(x->host.bytes());
    }
    return all;
  }
  void poison() {
    for (GpuTensor* x : {&dq, &dk, &dv}) {
      x->host.poison();
      x->upload();
    }
  }
};

/// A problem whose chains rotate or share tiles, and the gradients that the whole device gives it.
struct Rotating {
  Rotating(const Mask& mask, int64_t head_dim, const std::string& order)
      : c(problem_of(mask, head_dim, 1), mask, 5), order(order) {
    whole = c.plan(Pass::backward, order);
    gpu()->forward(c.plan(Pass::forward, "ascending"), c.forward(), {});
    Gradients gradients(c.problem);
    gpu()->backward(whole, gradients.of(c), {});
    gpu()->synchronize({});
    expected = gradients.bits();
  }

  Attention attention() const {
    AttentionOptions options;
    options.device = "cuda";
    options.plan.order = order;
    options.plan.level = Level::run_to_run;
    return Attention(c.problem, c.mask, options);
  }

  GpuCase c;
  std::string order;
  SharedPlan whole;
  std::vector<std::vector<uint8_t>> expected;
};

std::vector<std::unique_ptr<Rotating>> cases(int64_t head_dim) {
  std::vector<std::unique_ptr<Rotating>> all;
  const std::vector<int64_t> documents{3072, 1024, 1024, 1024};
  for (const char* order : {"shift", "shift/split", "descending/split"}) {
    all.push_back(std::make_unique<Rotating>(masks::full(4096, 4096), head_dim, order));
    all.push_back(std::make_unique<Rotating>(masks::full_document(documents), head_dim, order));
  }
  const Mask blocks = masks::uniform_block_sparse(4096, 4096, 64, 64, 0.3, 5, 1);
  all.push_back(std::make_unique<Rotating>(blocks, head_dim, "matched/split"));
  return all;
}

TEST(Residency, GreenContextsGiveTheSameBits) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  int waiting = 0;  // plans that need more than their stream has
  for (const int64_t head_dim : {64, 128}) {
    const auto all = cases(head_dim);
    for (const int multiprocessors : {8, 16, 40}) {
      GreenContext context(multiprocessors);
      if (!context.made()) GTEST_SKIP() << "no green contexts";
      ASSERT_EQ(gpu()->available({.stream = context.stream()}), context.multiprocessors());
      for (const auto& rotating : all) {
        const Attention attention = rotating->attention();
        const Plan& whole = attention.plan(Pass::backward);
        waiting += whole.residency > context.multiprocessors();
        Gradients gradients[4] = {Gradients(rotating->c.problem), Gradients(rotating->c.problem),
                                  Gradients(rotating->c.problem), Gradients(rotating->c.problem)};
        for (int streams = 1; streams <= 4; ++streams) {
          cudaStream_t stream[4];
          for (int s = 0; s < streams; ++s) stream[s] = context.stream(-(s % 3));
          for (Gradients& g : gradients) g.poison();
          for (int call = 0; call < 8 * streams; ++call) {
            const int s = call % streams;
            attention.backward(gradients[s].of(rotating->c),
                               {.stream = stream[s], .wait_limit = kLimit});
          }
          for (int s = 0; s < streams; ++s) {
            gpu()->synchronize({.stream = stream[s]});
            EXPECT_EQ(gradients[s].bits(), rotating->expected) << fmt::format(
                "{} {} head dim {}, {} of {} streams, {} multiprocessors", rotating->c.mask.name(),
                rotating->order, head_dim, s, streams, context.multiprocessors());
          }
        }
      }
    }
  }
  EXPECT_GT(waiting, 6);
}

/// The backward of documents in eight multiprocessors: the bits that the whole device gives.
void expect_same_in_eight_multiprocessors(const std::vector<int64_t>& documents, int64_t q_heads,
                                          int64_t kv_heads) {
  const Mask mask = masks::full_document(documents);
  Problem problem = problem_of(mask, 128, 1);
  problem.q_heads = q_heads;
  problem.kv_heads = kv_heads;
  GpuCase c(problem, mask, 5);
  GreenContext context(8);
  if (!context.made()) GTEST_SKIP() << "no green contexts";
  AttentionOptions options;
  options.device = "cuda";
  const Attention attention(c.problem, mask, options);
  const Plan& whole = attention.plan(Pass::backward);
  attention.forward(c.forward());
  Gradients expected(c.problem), got(c.problem);
  attention.backward(expected.of(c));
  const cudaStream_t stream = context.stream();
  cuda::check(cudaDeviceSynchronize(), "test");
  attention.backward(got.of(c), {.stream = stream, .wait_limit = kLimit});
  gpu()->synchronize({.stream = stream});
  EXPECT_EQ(got.bits(), expected.bits());
  if (whole.residency > context.multiprocessors() && gpu()->kernel_name(whole) == "sm90.backward") {
    EXPECT_THROW(gpu()->backward(share(whole), got.of(c), {.stream = stream}), Error)
        << "a plan that needs more than its stream has";
    gpu()->synchronize({.stream = stream});
  }
}

// Six times as many tasks that wait as there are multiprocessors: without a clock this had no end.
TEST(Residency, ManyHeadsOfDocumentsEndInEightMultiprocessors) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  expect_same_in_eight_multiprocessors({6144, 2048, 2048, 2048, 2048, 2048}, 16, 16);
}

// One document rotates and is cut, the other has parts: both meet in one launch.
TEST(Residency, DocumentsOfSeveralOrdersRunInEightMultiprocessors) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  expect_same_in_eight_multiprocessors({3072, 1024}, 32, 1);
}

TEST(Residency, StreamsOfMixedPrioritiesEnd) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  int lowest, highest;
  cuda::check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "test");
  for (const int64_t head_dim : {64, 128}) {
    const auto all = cases(head_dim);
    for (int streams = 1; streams <= 4; ++streams) {
      std::vector<cudaStream_t> stream(streams);
      std::vector<std::unique_ptr<Gradients>> gradients;
      for (int s = 0; s < streams; ++s) {
        const int priority = std::max(highest, lowest - s);
        cuda::check(cudaStreamCreateWithPriority(&stream[s], cudaStreamNonBlocking, priority),
                    "test");
        gradients.push_back(std::make_unique<Gradients>(all[s]->c.problem));
      }
      for (int call = 0; call < 200; ++call) {
        const auto s = static_cast<size_t>(call % streams);
        gpu()->backward(all[s]->whole, gradients[s]->of(all[s]->c),
                        {.stream = stream[s], .wait_limit = kLimit});
      }
      for (size_t s = 0; s < stream.size(); ++s) {
        gpu()->synchronize({.stream = stream[s]});
        EXPECT_EQ(gradients[s]->bits(), all[s]->expected)
            << all[s]->c.mask.name() << " " << all[s]->order << " head dim " << head_dim
            << ", stream " << s << " of " << streams;
        cudaStreamDestroy(stream[s]);
      }
    }
  }
}

// Multiprocessors come free in three lots, and each launch would take one that is too small for it.
TEST(Residency, LaunchesThatShareWhatComesFreeEnd) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const int all = cuda::device(0).multiprocessors;
  const int64_t length = 128 * int64_t{all / 2 - 2};
  const Rotating rotating(masks::full(length, length), 128, "shift");
  if (gpu()->kernel_name(*rotating.whole) != "sm90.backward") GTEST_SKIP() << "several CTAs fit";
  ASSERT_GT(3 * rotating.whole->residency, all + all / 3);
  ASSERT_LE(2 * rotating.whole->residency, all);
  int lowest, highest;
  cuda::check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "test");
  cudaStream_t stream[3];
  std::vector<std::unique_ptr<Gradients>> gradients;
  for (int s = 0; s < 3; ++s) {
    cuda::check(cudaStreamCreateWithPriority(&stream[s], cudaStreamNonBlocking,
                                             std::max(highest, lowest - s)),
                "test");
    gradients.push_back(std::make_unique<Gradients>(rotating.c.problem));
  }
  {
    Occupied occupied(all, Occupied::By::most_shared);
    for (int s = 0; s < 3; ++s) {
      gpu()->backward(rotating.whole, gradients[s]->of(rotating.c),
                      {.stream = stream[s], .wait_limit = 1});
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // its small kernels have run
      occupied.leave((s + 1) * all / 3);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
  for (int s = 0; s < 3; ++s) {
    EXPECT_NO_THROW(gpu()->synchronize({.stream = stream[s]}));
    EXPECT_EQ(gradients[s]->bits(), rotating.expected) << "stream " << s;
    cudaStreamDestroy(stream[s]);
  }
}

TEST(Residency, GraphsReplayBesideCalls) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const auto all = cases(128);
  cudaStream_t stream[4];
  cudaGraphExec_t executable[2];
  std::vector<std::unique_ptr<Gradients>> gradients;
  for (size_t s = 0; s < 4; ++s) {
    cuda::check(cudaStreamCreateWithFlags(&stream[s], cudaStreamNonBlocking), "test");
    gradients.push_back(std::make_unique<Gradients>(all[s]->c.problem));
  }
  for (size_t s = 0; s < 2; ++s) {
    cudaGraph_t graph;
    cuda::check(cudaStreamBeginCapture(stream[s], cudaStreamCaptureModeGlobal), "test");
    gpu()->backward(all[s]->whole, gradients[s]->of(all[s]->c),
                    {.stream = stream[s], .wait_limit = kLimit});
    cuda::check(cudaStreamEndCapture(stream[s], &graph), "test");
    cuda::check(cudaGraphInstantiate(&executable[s], graph, 0), "test");
    cuda::check(cudaGraphDestroy(graph), "test");
  }
  for (int call = 0; call < 200; ++call) {
    const auto s = static_cast<size_t>(call % 4);
    if (s < 2) {
      cuda::check(cudaGraphLaunch(executable[s], stream[s]), "test");
    } else {
      gpu()->backward(all[s]->whole, gradients[s]->of(all[s]->c),
                      {.stream = stream[s], .wait_limit = kLimit});
    }
  }
  for (size_t s = 0; s < 4; ++s) {
    gpu()->synchronize({.stream = stream[s]});
    EXPECT_EQ(gradients[s]->bits(), all[s]->expected) << "stream " << s;
  }
  for (cudaGraphExec_t e : executable) cudaGraphExecDestroy(e);
  for (cudaStream_t s : stream) cudaStreamDestroy(s);
}

uint64_t plan_bytes() {
  uint64_t used = 0;
  cuda::check(cudaMemPoolGetAttribute(cuda::device(0).plans, cudaMemPoolAttrUsedMemCurrent, &used),
              "test");
  return used;
}

TEST(Plans, GoWithTheirOwners) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const Mask mask = masks::causal(2048, 2048);
  GpuCase c(problem_of(mask, 128, 1), mask, 3);
  gpu()->forward(c.plan(Pass::forward, "descending"), c.forward(), {});
  const SharedPlan kept = c.plan(Pass::backward, "descending");
  const auto bytes_with_one_more = [&] {
    gpu()->backward(share(*kept), c.backward(), {});
    gpu()->synchronize({});
    cuda::check(cudaDeviceSynchronize(), "test");
    return plan_bytes();
  };
  bytes_with_one_more();  // frees what other tests have left
  const uint64_t least = bytes_with_one_more();
  for (int i = 0; i < 20; ++i) EXPECT_LE(bytes_with_one_more(), least);
  std::vector<SharedPlan> many;
  for (int i = 0; i < 20; ++i) {
    many.push_back(share(*kept));
    gpu()->backward(many.back(), c.backward(), {});
  }
  EXPECT_GT(bytes_with_one_more(), least);
  many.clear();
  EXPECT_LE(bytes_with_one_more(), least);
}

TEST(Plans, OfDestroyedGraphsAreFreed) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const Mask mask = masks::causal(2048, 2048);
  GpuCase c(problem_of(mask, 128, 1), mask, 3);
  const SharedPlan backward = c.plan(Pass::backward, "descending");
  c.run(*gpu(), c.plan(Pass::forward, "descending"), backward);
  const auto expected = c.bits();
  cudaStream_t stream;
  cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "test");
  uint64_t full = 0;  // bytes of the plans of some graphs
  for (int i = 0; i < 200; ++i) {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "test");
    gpu()->backward(share(*backward), c.backward(), {.stream = stream});
    cuda::check(cudaStreamEndCapture(stream, &graph), "test");
    cuda::check(cudaGraphInstantiate(&executable, graph, 0), "test");
    cuda::check(cudaGraphDestroy(graph), "test");
    cuda::check(cudaGraphLaunch(executable, stream), "test");
    cuda::check(cudaGraphExecDestroy(executable), "test");
    if (i == 99) {
      cuda::check(cudaDeviceSynchronize(), "test");
      full = plan_bytes();
    }
  }
  gpu()->synchronize({.stream = stream});
  c.run(*gpu(), c.plan(Pass::forward, "descending"), backward);
  EXPECT_EQ(c.bits(), expected);
  // A thread of the driver lets the plans go, in its own time.
  uint64_t used = 0;
  for (int attempt = 0; attempt < 50; ++attempt) {
    gpu()->backward(share(*backward), c.backward(), {.stream = stream});
    gpu()->synchronize({.stream = stream});
    cuda::check(cudaDeviceSynchronize(), "test");
    used = plan_bytes();
    if (used <= full) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_LE(used, full + full / 4);
  cudaStreamDestroy(stream);
}

// Threads share plans of equal size that differ, and all are let go while none that was launched
// has run. Each launch has gradients of its own: a later one would hide its error.
TEST(Plans, OfTheStreamOfEachThreadStayWhileInUse) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const Mask mask = masks::causal(2048, 2048);
  GpuCase c(problem_of(mask, 128, 1), mask, 3);
  gpu()->forward(c.plan(Pass::forward, "descending"), c.forward(), {});
  constexpr size_t kOrders = 3, kThreads = 4;
  std::array<SharedPlan, kOrders> plan;
  std::array<std::vector<std::vector<uint8_t>>, kOrders> expected;
  for (size_t o = 0; o < kOrders; ++o) {
    plan[o] = c.plan(Pass::backward, std::array{"ascending", "descending", "right_to_left"}[o]);
    Gradients gradients(c.problem);
    gpu()->backward(plan[o], gradients.of(c), {});
    gpu()->synchronize({});
    expected[o] = gradients.bits();
  }
  constexpr size_t kPlans = 90;
  std::vector<SharedPlan> plans;
  for (size_t i = 0; i < kPlans; ++i) plans.push_back(share(*plan[i % kOrders]));
  std::vector<std::unique_ptr<Gradients>> gradients;  // of each thread and plan
  for (size_t i = 0; i < kThreads * kPlans; ++i)
    gradients.push_back(std::make_unique<Gradients>(c.problem));
  std::array<std::string, kThreads> failed;
  std::optional<Occupied> occupied(cuda::device(0).multiprocessors);
  std::latch launched(kThreads);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const auto attempt = [&](const auto& work) {
        try {
          work();
        } catch (const std::exception& error) {
          failed[t] = error.what();
        }
      };
      attempt([&] {
        for (size_t i = 0; i < kPlans; ++i)
          gpu()->backward(plans[i], gradients[t * kPlans + i]->of(c),
                          {.stream = cudaStreamPerThread});
      });
      launched.count_down();
      attempt([&] { gpu()->synchronize({.stream = cudaStreamPerThread}); });
    });
  }
  launched.wait();
  plans.clear();
  // Plans that are made meanwhile take the memory that comes free, wherever in the pool it lies.
  std::vector<SharedPlan> later;
  for (size_t i = 0; i < 5000; ++i) {
    later.push_back(share(*plan[i % kOrders]));
    cuda::device_plan(cuda::device(0), later.back());
  }
  EXPECT_TRUE(occupied->holds()) << "some had run before all were launched";
  occupied.reset();
  for (std::thread& thread : threads) thread.join();
  for (size_t t = 0; t < kThreads; ++t) {
    EXPECT_EQ(failed[t], "");
    size_t differ = 0;
    for (size_t i = 0; i < kPlans; ++i)
      differ += gradients[t * kPlans + i]->bits() != expected[i % kOrders];
    EXPECT_EQ(differ, 0) << "of " << kPlans << " launches of thread " << t;
  }
}

// Kernels write their lists of runs. Neither these nor launches keep the host from copying more.
TEST(Plans, LongOnesAreCopiedWhileNothingRuns) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const Mask mask = masks::uniform_block_sparse(16384, 16384, 64, 64, 0.5, 1, 2);
  Problem problem = problem_of(mask, 64, 2);
  problem.q_heads = 4;
  problem.kv_heads = 2;
  GpuCase c(problem, mask, 3);
  gpu()->forward(c.plan(Pass::forward, "descending"), c.forward(), {});
  constexpr size_t kPlans = 6;
  std::array<std::vector<std::vector<uint8_t>>, 2> expected;
  std::array<SharedPlan, 2> plan;
  for (size_t o = 0; o < plan.size(); ++o) {
    plan[o] = c.plan(Pass::backward, std::array{"ascending", "descending"}[o]);
    ASSERT_GT(cuda::PlanBytes(*plan[o], nullptr).spreads(nullptr).count, 0);
    Gradients gradients(c.problem);
    gpu()->backward(plan[o], gradients.of(c), {});
    gpu()->synchronize({});
    expected[o] = gradients.bits();
  }
  std::vector<std::unique_ptr<Gradients>> gradients;
  for (size_t i = 0; i < kPlans; ++i) gradients.push_back(std::make_unique<Gradients>(c.problem));
  std::optional<Occupied> occupied(cuda::device(0).multiprocessors);
  for (size_t i = 0; i < kPlans; ++i) {
    gpu()->backward(share(*plan[i % 2]), gradients[i]->of(c), {});
    cuda::device_plan(cuda::device(0), share(*plan[i % 2]));  // nobody runs it
  }
  EXPECT_TRUE(occupied->holds()) << "some had run before all were launched";
  occupied.reset();
  gpu()->synchronize({});
  for (size_t i = 0; i < kPlans; ++i)
    EXPECT_EQ(gradients[i]->bits(), expected[i % 2]) << "launch " << i;
}

// More batch entries times heads than a grid's y dimension holds.
TEST(Launch, ManyShortHeadsRun) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const Mask mask = masks::causal(4, 4);
  Problem p = problem_of(mask, 64, 2);
  p.q_heads = p.kv_heads = 32'800;
  GpuCase c(p, mask, 7);
  c.run(*gpu(), c.plan(Pass::forward, "descending"), c.plan(Pass::backward, "descending"));
  double ratio = 0;
  EXPECT_EQ(c.examine(ratio), "");
}

}  // namespace
}  // namespace verbatim::test
