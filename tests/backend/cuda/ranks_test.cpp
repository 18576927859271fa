// Ranks that share a GPU, here threads: over a wire of the host alone, and as peers that copy from
// each other's memory. The bits of one device.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "backend/cuda/gpu_case.h"
#include "core/random.h"
#include "dist/memory_wire.h"
#include "dist/processes.h"
#include "verbatim/dist.h"

namespace verbatim::test {
namespace {

constexpr double kTimeout = 60;  // seconds

class Ranks : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!gpu()) GTEST_SKIP() << "no GPU";
  }
  /// Both passes for the strategy; `overlapped`: with launches of one head.
  std::array<DistPlan, 2> deal(const Mask& mask, const SharedPlan& forward,
                               const SharedPlan& backward, int32_t world,
                               bool overlapped = false) const {
    const DistOptions options{.world = world,
                              .strategy = GetParam(),
                              .joined_heads = overlapped ? 1 : 0,
                              .overlapped = overlapped};
    const Sharding sharding = make_sharding(*forward, *backward, mask, options);
    return {make_dist_plan(*forward, sharding, options),
            make_dist_plan(*backward, sharding, options)};
  }
};

TEST_P(Ranks, OfOneGpuHaveTheBitsOfOneDevice) {
  const std::vector<int64_t> documents{700, 16, 0, 1301, 84};
  const Mask mask = masks::causal_document(documents);
  const Problem problem = problem_of(mask, 128, 1);
  for (const int32_t world : {2, 4}) {
    SCOPED_TRACE(world);
    std::vector<std::unique_ptr<GpuCase>> cases;
    for (int32_t r = 0; r < world; ++r)
      cases.push_back(std::make_unique<GpuCase>(problem, mask, 7));
    GpuCase& first = *cases[0];
    const SharedPlan forward = first.plan(Pass::forward, "auto");
    const SharedPlan backward = first.plan(Pass::backward, "auto");
    first.run(*gpu(), forward, backward);
    const auto expected = first.bits();
    const auto [dealt_forward, dealt_backward] = deal(mask, forward, backward, world);
    for (const auto& c : cases) c->poison();

    Lines lines(world);
    std::vector<std::string> errors(world);
    std::vector<dist::Processes::Result> results(2);  // of rank 0, by pass
    std::vector<std::thread> threads;
    for (int32_t r = 0; r < world; ++r)
      threads.emplace_back([&, r] {
        try {
          MemoryWire wire(lines, r);
          dist::Processes ranks(wire, kTimeout);
          const GpuCase& own = *cases[r];
          const RunOptions run{.stream = cudaStreamPerThread};
          const auto f = ranks.run(dealt_forward, dist::whole_tensors(own.forward()), *gpu(), run);
          const auto b =
              ranks.run(dealt_backward, dist::whole_tensors(own.backward()), *gpu(), run);
          if (r == 0) results = {f, b};
        } catch (const std::exception& error) {
          errors[r] = error.what();
          lines.over = true;
        }
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(errors, std::vector<std::string>(world));
    for (int32_t r = 0; r < world && !HasFailure(); ++r) {
      EXPECT_EQ(results[0].reports[r].sent_bytes, sent_bytes(dealt_forward, r));
      EXPECT_EQ(results[1].reports[r].sent_bytes, sent_bytes(dealt_backward, r));
    }
    for (GpuTensor* output : first.outputs()) output->download();
    EXPECT_TRUE(first.bits() == expected);
  }
}

/// A pass of one rank over its shard of these tensors, in memory of the device.
template <class Tensors>
void run_shard(const DistPlan& plan, int32_t rank, const Tensors& whole, Transport& transport,
               const RunOptions& run) {
  dist::ShardMemory shard(plan, rank, *gpu(), run);
  shard.take(dist::whole_tensors(whole));
  dist::run_rank(plan, rank, *gpu(), shard.tensors(), run, transport);
  shard.give(dist::whole_tensors(whole));
}

TEST_P(Ranks, ThatReadEachOthersMemoryHaveTheBitsOfOneDevice) {
  const std::vector<int64_t> documents{700, 16, 0, 1301, 84};
  const Mask mask = masks::causal_document(documents);
  GpuCase one(problem_of(mask, 128, 1), mask, 7);
  const SharedPlan forward = one.plan(Pass::forward, "auto");
  const SharedPlan backward = one.plan(Pass::backward, "auto");
  one.run(*gpu(), forward, backward);
  const auto expected = one.bits();
  // ContextParallel deals for what overlaps, the caller of dist.h as it likes.
  for (const auto& [world, overlapped] :
       {std::pair{2, false}, std::pair{2, true}, std::pair{4, true}}) {
    SCOPED_TRACE(fmt::format("{} {}", world, overlapped));
    const auto dealt = deal(mask, forward, backward, world, overlapped);
    one.poison();
    std::vector<std::string> errors(world);
    std::vector<std::thread> threads;
    const std::string name =
        fmt::format("gpu-test-{}-{}-{}-{}", getpid(), GetParam(), world, overlapped);
    for (int32_t r = 0; r < world; ++r)
      threads.emplace_back([&, r] {
        try {
          const auto peers = make_peers(name, world, r, "cuda", kTimeout, kTimeout);
          const RunOptions run{.stream = cudaStreamPerThread};
          Random random(r);
          for (int repeat = 0; repeat < 10; ++repeat) {
            std::this_thread::sleep_for(std::chrono::microseconds(random.between(0, 5000)));
            run_shard(dealt[0], r, one.forward(), *peers, run);
            run_shard(dealt[1], r, one.backward(), *peers, run);
          }
          gpu()->synchronize(run);
        } catch (const std::exception& error) {
          errors[r] = error.what();
        }
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(errors, std::vector<std::string>(world));
    for (GpuTensor* output : one.outputs()) output->download();
    EXPECT_TRUE(one.bits() == expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Gpu, Ranks,
                         testing::Values("ulysses", "ring", "allgather", "usp", "loongtrain",
                                         "balanced"));

}  // namespace
}  // namespace verbatim::test
