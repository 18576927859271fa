// Sums of products in the interpreter of TL.
#include "backend/tl/tile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "core/random.h"

namespace verbatim::test {
namespace {

// One row of 192 products: 16 in a chain, then that sum to the rest.
TEST(Tile, ProductsAreAddedSixteenAtATime) {
  constexpr int64_t kDepth = 192;
  int64_t other = 0;  // bits than those of one chain
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Random random(seed);
    tl::Tile a{1, kDepth}, b{kDepth, 1}, out{1, 1};
    out.data = {0};
    float sum = 0, chain = 0, part = 0;
    double exact = 0, size = 0;
    for (int64_t k = 0; k < kDepth; ++k) {
      const auto number = [&] { return static_cast<float>(random.between(-4096, 4096)) / 512; };
      const float x = a.data.emplace_back(number()), y = b.data.emplace_back(number());
      part += x * y;
      chain += x * y;
      exact += double{x} * y;
      size += std::abs(double{x} * y);
      if (k % 16 == 15) sum += std::exchange(part, 0.0f);
    }
    std::vector<float> scratch;
    tl::multiply({a, false, b, false}, false, out, scratch);
    EXPECT_EQ(out.data[0], sum) << seed;
    EXPECT_LE(std::abs(out.data[0] - exact), size * 0x1p-24 * 16) << seed;
    other += out.data[0] != chain;
  }
  EXPECT_GT(other, 0);
}

}  // namespace
}  // namespace verbatim::test
