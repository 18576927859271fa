// Ranks that share a GPU and nothing else but a wire of the host, here threads with tensors of
// their own: the bits of one device.
#include <gtest/gtest.h>

#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "backend/cuda/gpu_case.h"
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
    const DistOptions options{.world = world, .strategy = GetParam()};
    const Sharding sharding = make_sharding(*forward, *backward, mask, options);
    const DistPlan dealt_forward = make_dist_plan(*forward, sharding, options);
    const DistPlan dealt_backward = make_dist_plan(*backward, sharding, options);
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

INSTANTIATE_TEST_SUITE_P(Gpu, Ranks,
                         testing::Values("ulysses", "ring", "allgather", "usp", "loongtrain",
                                         "balanced"));

}  // namespace
}  // namespace verbatim::test
