#include "core/dropout.h"

#include <gtest/gtest.h>

#include <cmath>

namespace verbatim {
namespace {

// The "philox4x32 10" lines of the authors' published known-answer vectors (kat_vectors).
struct KnownAnswer {
  PhiloxBlock counter;
  uint32_t key[2];
  PhiloxBlock expected;
};
constexpr KnownAnswer kKnownAnswers[] = {
    {{{0, 0, 0, 0}}, {0, 0}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
    {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
     {0xffffffff, 0xffffffff},
     {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
    {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
     {0xa4093822, 0x299f31d0},
     {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
};

TEST(Philox, KnownAnswers) {
  for (const KnownAnswer& known : kKnownAnswers) {
    const uint64_t key = known.key[0] | uint64_t{known.key[1]} << 32;
    const PhiloxBlock got = philox4x32_10(known.counter, key);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(got.word[i], known.expected.word[i]);
  }
}

TEST(Dropout, DrawsTheDocumentedHalfWord) {
  const Dropout dropout = Dropout::make(0.3, 0x299f31d0a4093822);
  for (uint32_t k = 0; k < 64; ++k) {
    const PhiloxBlock block = philox4x32_10({{7, k / 8, 5, 3}}, dropout.seed);
    const uint32_t word = block.word[k % 8 / 2];
    const uint32_t draw = k % 2 == 0 ? word & 0xffff : word >> 16;
    EXPECT_EQ(dropout.keep(3, 5, 7, k), draw >= 19661) << k;  // round(0.3 * 65536)
  }
}

TEST(Dropout, KeepsTheExpectedShareAndItsScale) {
  for (double p : {0.0, 0.1, 0.5, 0.9}) {
    const Dropout dropout = Dropout::make(p, 42);
    EXPECT_NEAR(dropout.scale, 1 / (1 - p), 1e-3);
    int64_t kept = 0;
    constexpr int kRows = 64, kKeys = 1024;
    for (uint32_t q = 0; q < kRows; ++q)
      for (uint32_t k = 0; k < kKeys; ++k) kept += dropout.keep(0, 1, q, k);
    const double n = kRows * kKeys;
    EXPECT_NEAR(kept / n, 1 - p, 5 * std::sqrt(p * (1 - p) / n)) << p;
  }
}

TEST(Dropout, StaysFiniteNextToOne) {
  const Dropout dropout = Dropout::make(std::nextafter(1.0, 0.0), 1);
  EXPECT_EQ(dropout.threshold, 65535u);
  EXPECT_EQ(dropout.scale, 65536.0f);
}

}  // namespace
}  // namespace verbatim
