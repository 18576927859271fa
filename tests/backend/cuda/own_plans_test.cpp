// Orders that no rule makes: kernels may take for granted only what verify() proves.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "backend/cuda/gpu_case.h"
#include "backend/cuda/repeat.h"
#include "support/random_order.h"

namespace verbatim::test {
namespace {

constexpr int32_t kAtOnce = 8, kWorkers = 40;
constexpr int64_t kRepeats = 20;

SharedPlan random_order(const GpuCase& c, Pass pass, const std::string& order, uint64_t seed,
                        const std::string& arithmetic) {
  const SharedPlan rule = c.plan(pass, order, {0, 0}, "queue", kWorkers, arithmetic);
  return share(in_random_order(*rule, seed, kAtOnce, kWorkers));
}

TEST(OwnPlans, RandomOrdersAreRightAndRepeat) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  double worst = 0;
  uint64_t seed = 1, number = 0;
  const auto try_both = [&](const std::string& name, const Problem& problem, const Mask& mask,
                            const std::string& arithmetic) {
    GpuCase c(problem, mask, 11);
    const SharedPlan forward = random_order(c, Pass::forward, "ascending", seed, arithmetic);
    const SharedPlan backward = random_order(
        c, Pass::backward, seed % 2 ? "ascending" : "ascending/split", seed, arithmetic);
    ++seed;
    SCOPED_TRACE(fmt::format("{} {} {} seed {}", name, arithmetic, to_json(problem), seed - 1));
    c.run(*gpu(), forward, backward);
    EXPECT_EQ(c.examine(worst), "");
    EXPECT_EQ(Repeats(c).differing(*gpu(), forward, backward, nullptr, kRepeats), 0);
  };
  for (const std::string& arithmetic : {gpu_arithmetic(), std::string("sm80")})
    for (const HeadDims& dims : arithmetic == "sm80" ? every_head_dims() : hopper_head_dims())
      for (const auto& [name, mask] : patterns(600, 2)) {
        if (++number % 4 != 0) continue;  // so that each pattern meets some head dims
        Problem p = problem_of(mask, dims, 1);
        if (seed % 3 == 0) {
          p.softcap = 1.5;
          p.dropout = 0.3;
          p.dtype = Dtype::f16;
        }
        try_both(name, p, mask, arithmetic);
      }
  fmt::print("{} random orders, worst error ratio {:.2f}\n", seed - 1, worst);
}

}  // namespace
}  // namespace verbatim::test
