#include "plan/row_counters.h"

#include <gtest/gtest.h>

#include <random>

namespace verbatim {
namespace {

size_t take(RowCounters& counters, int32_t first, int32_t last) {
  std::vector<Stair> stairs;
  counters.take(first, last, stairs);
  return stairs.size();
}

TEST(RowCounters, AgreesWithOneCounterPerRow) {
  std::mt19937 rng(7);
  for (int round = 0; round < 300; ++round) {
    const int32_t rows = 1 + static_cast<int32_t>(rng() % 40);
    RowCounters counters(rows);
    std::vector<int32_t> naive(rows);
    for (int step = 0; step < 60; ++step) {
      int32_t first = static_cast<int32_t>(rng() % static_cast<uint32_t>(rows + 1));
      int32_t last = static_cast<int32_t>(rng() % static_cast<uint32_t>(rows + 1));
      if (first > last) std::swap(first, last);
      std::vector<Stair> stairs;
      counters.take(first, last, stairs);
      int32_t row = first;
      for (const Stair& stair : stairs) {
        ASSERT_EQ(stair.begin, row);
        for (; row < stair.end; ++row) ASSERT_EQ(stair.at(row), naive[row]);
      }
      ASSERT_EQ(row, last);
      for (int32_t r = first; r < last; ++r) ++naive[r];
      ASSERT_EQ(counters.values(), naive);
    }
  }
}

TEST(RowCounters, CausalSweepsStayConstantSize) {
  for (const int32_t ratio : {1, 2, 4}) {
    for (const int32_t odd : {0, 1}) {
      const int32_t columns = 500, rows = columns * ratio - odd;
      RowCounters right_to_left(rows), left_to_right(rows);
      for (int32_t c = 0; c < columns; ++c) {
        EXPECT_LE(take(left_to_right, c * ratio, rows), 2u);
        EXPECT_LE(take(right_to_left, (columns - 1 - c) * ratio, rows), 4u);
      }
    }
  }
}

TEST(RowCounters, WindowSweepsStayConstantSize) {
  constexpr int32_t kRows = 1000, kHeight = 18, kRatio = 2;
  RowCounters right_to_left(kRows), left_to_right(kRows);
  for (int32_t c = 0; c < kRows / kRatio; ++c) {
    const int32_t mirrored = kRows / kRatio - 1 - c;
    EXPECT_LE(take(left_to_right, c * kRatio, std::min(c * kRatio + kHeight, kRows)), 4u);
    EXPECT_LE(take(right_to_left, mirrored * kRatio, std::min(mirrored * kRatio + kHeight, kRows)),
              4u);
  }
}

}  // namespace
}  // namespace verbatim
