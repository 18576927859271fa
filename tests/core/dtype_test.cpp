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

TEST(Dtype, EveryE4m3IsItsFormula) {
  for (int code = 0; code < 0x100; ++code) {
    const float wide = to_f32(E4m3{static_cast<uint8_t>(code)});
    const int exponent = (code >> 3) & 15, mantissa = code & 7;
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(wide));
      EXPECT_EQ(to_e4m3(wide).bits, 0x7f);
      continue;
    }
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    EXPECT_EQ(wide, code < 0x80 ? magnitude : -magnitude) << code;
    EXPECT_EQ(to_e4m3(wide).bits, code);
  }
}

// Halfway between two codes the even one, and a hair to either side the nearer.
TEST(Dtype, E4m3RoundsToTheNearest) {
  for (int code = 0; code < 0x7e; ++code)
    for (const int sign : {0, 0x80}) {
      const float low = to_f32(E4m3{static_cast<uint8_t>(code | sign)});
      const float high = to_f32(E4m3{static_cast<uint8_t>((code + 1) | sign)});
      const float half = (low + high) / 2;
      EXPECT_EQ(to_e4m3(half).bits, (code + code % 2) | sign) << code;
      EXPECT_EQ(to_e4m3(std::nextafter(half, low)).bits, code | sign) << code;
      EXPECT_EQ(to_e4m3(std::nextafter(half, high)).bits, (code + 1) | sign) << code;
    }
}

TEST(Dtype, E4m3Saturates) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float x : {448.0f, 464.0f, 480.0f, 1e30f, infinity}) {
    EXPECT_EQ(to_f32(to_e4m3(x)), 448.0f);
    EXPECT_EQ(to_f32(to_e4m3(-x)), -448.0f);
  }
  EXPECT_EQ(to_e4m3(-0.0f).bits, 0x80);
  EXPECT_EQ(to_e4m3(-std::numeric_limits<float>::quiet_NaN()).bits, 0x7f);
}

}  // namespace
}  // namespace verbatim
