#include "core/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "core/dtype.h"

namespace verbatim {
namespace {

TEST(Random, FollowsSplitMix64) {
  // First outputs of SplitMix64 from state 1234567, the vectors in common use (Vigna's
  // splitmix64.c).
  constexpr uint64_t kExpected[] = {6457827717110365317u, 3203168211198807973u,
                                    9817491932198370423u};
  for (uint64_t i = 0; i < 3; ++i)
    EXPECT_EQ(mix64(1234567 + (i + 1) * 0x9e3779b97f4a7c15u), kExpected[i]);
}

TEST(Random, NormalMatchesItsDistribution) {
  constexpr int kCount = 200000;
  double worst = 0, sum = 0, squares = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = normal_at(7, i);
    worst = std::max(worst, std::abs(0.5 * std::erfc(-x / std::sqrt(2.0)) - uniform_at(7, i)));
    sum += x;
    squares += x * x;
  }
  EXPECT_LT(worst, 1e-6);  // the fit is a single-precision one
  EXPECT_NEAR(sum / kCount, 0, 5 / std::sqrt(kCount));
  EXPECT_NEAR(squares / kCount, 1, 5 * std::sqrt(2.0 / kCount));
}

TEST(Random, ValuesDoNotDependOnStrides) {
  constexpr std::array<int64_t, 4> kShape{2, 3, 2, 5};
  std::vector<float> dense(60), gapped(200, -1);
  const TensorView a = TensorView::dense(dense.data(), Dtype::f32, kShape);
  const TensorView b{gapped.data(), Dtype::f32, kShape, {100, 30, 7, 1}};
  fill_normal(a, 3);
  fill_normal(b, 3);
  for (int64_t l = 0; l < 3; ++l)
    EXPECT_EQ(std::memcmp(a.row<float>(1, l, 1), b.row<float>(1, l, 1), 20), 0);
  EXPECT_EQ(gapped[5], -1) << "wrote into a gap";
}

TEST(Random, StreamsDiffer) { EXPECT_NE(random_bits(0, 1), random_bits(1, 0)); }

}  // namespace
}  // namespace verbatim
