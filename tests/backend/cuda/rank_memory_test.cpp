// What a rank holds of a GPU while it runs, by the driver's count.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "backend/cuda/gpu_case.h"
#include "backend/cuda/runtime.h"
#include "dist/executor.h"
#include "dist/shard_memory.h"

namespace verbatim::test {
namespace {

/// Takes all that is sent, and leaves what is received as it was: a rank can run alone.
class Nobody final : public Transport {
 public:
  void send(int32_t, int64_t, std::span<const std::byte>) override {}
  bool receive(int32_t, int64_t, std::span<std::byte>) override { return true; }
};

/// Bytes that the pool of work spaces has given out since this was made.
class Pool {
 public:
  Pool() : before_(used()) {
    uint64_t zero = 0;
    cuda::check(cudaMemPoolSetAttribute(pool(), cudaMemPoolAttrUsedMemHigh, &zero), "test");
  }
  int64_t now() const { return used() - before_; }
  int64_t most() const { return get(cudaMemPoolAttrUsedMemHigh) - before_; }

 private:
  static cudaMemPool_t pool() { return cuda::device(0).pool; }
  static int64_t get(cudaMemPoolAttr attribute) {
    uint64_t value = 0;
    cuda::check(cudaMemPoolGetAttribute(pool(), attribute, &value), "test");
    return static_cast<int64_t>(value);
  }
  static int64_t used() {
    cuda::check(cudaDeviceSynchronize(), "test");
    return get(cudaMemPoolAttrUsedMemCurrent);
  }

  int64_t before_;
};

class RankMemory : public testing::TestWithParam<const char*> {
 protected:
  void expect_as_planned(const DistPlan& plan) {
    for (int32_t r = 0; r < std::ssize(plan.ranks); ++r) {
      const RunOptions run{.stream = cudaStreamPerThread};
      const int64_t planned = memory_bytes(plan, r);
      Nobody nobody;
      const Pool pool;
      {
        const dist::ShardMemory shard(plan, r, *gpu(), run);
        dist::RankExecutor rank(plan, r, *gpu(), shard.tensors(), run);
        EXPECT_EQ(pool.now(), planned) << r;
        while (rank.advance(nobody)) continue;
        EXPECT_TRUE(rank.done());
        EXPECT_GE(pool.most(), planned) << r;
        EXPECT_LE(pool.most(), peak_bytes(plan, r)) << r;
        const auto share = [&](int64_t of) {
          return static_cast<double>(pool.most()) / static_cast<double>(of);
        };
        most_ = std::max(most_, share(planned));
        least_ = std::min(least_, share(peak_bytes(plan, r)));
      }
      EXPECT_EQ(pool.now(), 0);
    }
  }
  void TearDown() override {
    EXPECT_GE(least_, kLeast);
    fmt::print("at most {:.2f} of what is held at first, at least {:.3f} of the planned peak\n",
               most_, least_);
  }

  static constexpr double kLeast = 0.8;  // of peak_bytes(), which is a bound
  double most_ = 0, least_ = 1;
};

TEST_P(RankMemory, OfAGpuIsAsPlanned) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const std::vector<int64_t> documents{3000, 1192, 4000};
  const int64_t length = 8192;
  const std::pair<Mask, int64_t> cases[] = {
      {masks::full(length, length), 16},
      {masks::causal(length, length), 2},
      {masks::causal_document(documents), 16},
      {masks::causal_sliding_window(length, length, 1024), 2}};  // and KV heads
  for (const auto& [mask, kv_heads] : cases) {
    Problem problem = problem_of(mask, 128, 1);
    problem.q_heads = 16;
    problem.kv_heads = kv_heads;
    PlanOptions options;
    options.machine = make_machine(gpu()->machine());
    options.arithmetic = gpu_arithmetic();
    options.pass = Pass::forward;
    const Plan forward = make_plan(problem, mask, options);
    options.pass = Pass::backward;
    const Plan backward = make_plan(problem, mask, options);
    for (const bool overlapped : {false, true}) {
      SCOPED_TRACE(fmt::format("{} {}", mask.name(), overlapped));
      const DistOptions dealt{.world = 4,
                              .strategy = GetParam(),
                              .joined_heads = overlapped ? 1 : 0,
                              .overlapped = overlapped};
      const Sharding sharding = make_sharding(forward, backward, mask, dealt);
      expect_as_planned(make_dist_plan(forward, sharding, dealt));
      expect_as_planned(make_dist_plan(backward, sharding, dealt));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Gpu, RankMemory,
                         testing::Values("ulysses", "ring", "allgather", "usp", "loongtrain",
                                         "balanced"));

}  // namespace
}  // namespace verbatim::test
