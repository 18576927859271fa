// The tile kernels of every instruction set: elementary functions, products, conversions.
#include "backend/cpu/kernels.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/dtype.h"
#include "core/random.h"

namespace verbatim::cpu {
namespace {

std::vector<float> randoms(int64_t count, uint64_t seed) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(2 * uniform_at(seed, i) - 1);
  return values;
}

/// e^x through softmax_backward with LSE 0: P = exp(S).
std::vector<float> exponentials(const KernelTable& kernels, std::vector<float> x, float softcap) {
  std::vector<float> dp(x.size(), 0.0f);
  const float lse = 0, delta = 0;
  const auto cols = static_cast<int32_t>(x.size());
  const ScoreTile tile{x.data(), cols, 1, cols, nullptr, nullptr, cols / kLanes};
  kernels.softmax_backward(tile, dp.data(), {1, softcap, softcap == 0 ? 0 : 1 / softcap, 1}, &lse,
                           &delta);
  return x;
}

TEST(Kernels, ExponentialIsWithinOneUlp) {
  std::vector<float> x;
  for (int i = 0; i < 16000; ++i) x.push_back(-87.3f + 0.0109f * static_cast<float>(i));
  for (const KernelTable* kernels : available_kernels()) {
    const std::vector<float> found = exponentials(*kernels, x, 0);
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i] > 88) continue;
      const double exact = std::exp(double{x[i]});
      const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
      worst = std::max(worst, std::abs(found[i] - exact) / ulp);
    }
    EXPECT_LT(worst, 1.0) << kernels->name;
  }
}

TEST(Kernels, ExponentialAtTheEnds) {
  const float inf = INFINITY, nan = NAN;
  std::vector<float> x{-inf, -1e30f, -100, 0, 200, inf, nan, -0.0f};
  x.resize(kLanes);
  for (const KernelTable* kernels : available_kernels()) {
    const std::vector<float> found = exponentials(*kernels, x, 0);
    EXPECT_EQ(found[0], 0);
    EXPECT_EQ(found[1], 0);
    EXPECT_EQ(found[2], 0);
    EXPECT_EQ(found[3], 1);
    EXPECT_TRUE(std::isfinite(found[4]) && found[4] > 1e38f);
    EXPECT_TRUE(std::isfinite(found[5]));
    EXPECT_TRUE(std::isnan(found[6]));
    EXPECT_EQ(found[7], 1);
  }
}

TEST(Kernels, SoftcapUsesAnAccurateTanh) {
  std::vector<float> x = randoms(1600, 4);
  for (float& value : x) value *= 40;
  for (const KernelTable* kernels : available_kernels()) {
    const std::vector<float> found = exponentials(*kernels, x, 5);
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp(5 * std::tanh(x[i] / 5.0));
      EXPECT_NEAR(found[i] / exact, 1, 3e-6) << kernels->name << " at " << x[i];
    }
  }
}

TEST(Kernels, ProductsAreChainsOfFusedMultiplyAdds) {
  const int32_t rows = 24, cols = 48, depth = 37;
  const std::vector<float> a = randoms(64 * 64, 1), b = randoms(64 * 64, 2),
                           c0 = randoms(64 * 64, 3);
  for (const KernelTable* kernels : available_kernels()) {
    for (const bool row_major : {true, false}) {
      for (const bool accumulate : {true, false}) {
        std::vector<float> c = c0;
        Gemm gemm{a.data(),
                  row_major ? 64 : 1,
                  row_major ? 1 : 64,
                  b.data(),
                  64,
                  c.data(),
                  64,
                  rows,
                  cols,
                  depth,
                  accumulate};
        kernels->gemm(gemm);
        for (int32_t i = 0; i < rows; ++i)
          for (int32_t j = 0; j < cols; ++j) {
            float sum = accumulate ? c0[i * 64 + j] : 0;
            for (int32_t k = 0; k < depth; ++k)
              sum = std::fma(a[i * gemm.a_row + k * gemm.a_depth], b[k * 64 + j], sum);
            ASSERT_EQ(c[i * 64 + j], sum) << kernels->name << " " << i << ", " << j;
          }
      }
    }
  }
}

TEST(Kernels, RowsKeepTheirValuesAndTellTaint) {
  for (const KernelTable* kernels : available_kernels()) {
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
      for (const int32_t cols : {1, 15, 16, 33}) {
        std::vector<float> source = randoms(9 * 64, 5), tile(16 * 64, NAN), back(9 * 64, NAN);
        const RowsOut out{source.data(), dtype, 40};
        kernels->add_rows(std::vector<float>(source).data(), 64, 9, cols, nullptr, 0, 1, out);
        EXPECT_TRUE(kernels->load_rows(source.data(), dtype, 40, 9, cols, tile.data(), 64));
        dispatch_dtype(dtype, [&]<class T>(T) {
          const T* stored = reinterpret_cast<const T*>(source.data());
          const std::vector<float> given = randoms(9 * 64, 5);
          for (int r = 0; r < 9; ++r)
            for (int c = 0; c < cols; ++c) {
              ASSERT_EQ(tile[r * 64 + c], to_f32(stored[r * 40 + c]));
              ASSERT_EQ(tile[r * 64 + c], to_f32(from_f32<T>(given[r * 64 + c])));
            }
        });
        const float bad = INFINITY;
        kernels->add_rows(std::vector<float>(16, bad).data(), 16, 1, 1, nullptr, 0, 1, out);
        EXPECT_FALSE(kernels->load_rows(source.data(), dtype, 40, 9, cols, tile.data(), 64));
      }
    }
  }
}

TEST(Kernels, ResultsHaveOneZeroAndOneNan) {
  const uint32_t nans[] = {0x7fc00000, 0xffc00000, 0x7fc00001, 0xffffffff};
  for (const KernelTable* kernels : available_kernels()) {
    for (const float scale : {1.0f, -2.0f}) {
      float in[16] = {0.0f, -0.0f, -1e-45f, INFINITY, -INFINITY, -3}, out[16];
      std::memcpy(in + 6, nans, sizeof(nans));
      kernels->add_rows(in, 16, 1, 10, nullptr, 0, scale, {out, Dtype::f32, 16});
      const float expected[] = {0,         0, -1e-45f * scale, INFINITY * scale, -INFINITY * scale,
                                -3 * scale};
      EXPECT_EQ(std::memcmp(out, expected, sizeof(expected)), 0) << kernels->name;
      for (int i = 6; i < 10; ++i)
        EXPECT_EQ(std::bit_cast<uint32_t>(out[i]), 0x7fc00000u) << kernels->name << ", " << i;
    }
  }
}

}  // namespace
}  // namespace verbatim::cpu
