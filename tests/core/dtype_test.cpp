#include "core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace verbatim {
namespace {

TEST(Dtype, EveryF16RoundTrips) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const F16 x{static_cast<uint16_t>(bits)};
    const float wide = to_f32(x);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(to_f32(to_f16(wide))));
    } else {
      EXPECT_EQ(to_f16(wide).bits, x.bits);
    }
  }
}

TEST(Dtype, EveryBf16RoundTrips) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Bf16 x{static_cast<uint16_t>(bits)};
    const float wide = to_f32(x);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(to_f32(to_bf16(wide))));
    } else {
      EXPECT_EQ(to_bf16(wide).bits, x.bits);
    }
  }
}

TEST(Dtype, RoundsHalfToEven) {
  EXPECT_EQ(to_f32(to_f16(1.0f + 0x1p-11f)), 1.0f);
  EXPECT_EQ(to_f32(to_f16(1.0f + 0x1.8p-10f)), 1.0f + 0x1p-9f);
  EXPECT_EQ(to_f32(to_bf16(1.0f + 0x1p-8f)), 1.0f);
  EXPECT_EQ(to_f32(to_bf16(1.0f + 0x1.8p-7f)), 1.0f + 0x1p-6f);
  EXPECT_EQ(to_f32(to_f16(65519.0f)), 65504.0f);
  EXPECT_TRUE(std::isinf(to_f32(to_f16(65520.0f))));
  EXPECT_EQ(to_f32(to_f16(0x1p-25f)), 0.0f);
  EXPECT_EQ(to_f32(to_f16(0x1.8p-25f)), 0x1p-24f);
}

}  // namespace
}  // namespace verbatim
