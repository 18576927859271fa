#include <fmt/format.h>
#include <gtest/gtest.h>

#include "mask/row_intervals.h"
#include "random_mask.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

using test::Rng;
using test::uniform;

void expect_same_positions(const HeadMask& a, const HeadMask& b) {
  ASSERT_EQ(a.q_len, b.q_len);
  ASSERT_EQ(a.kv_len, b.kv_len);
  for (int64_t q = 0; q < a.q_len; ++q) ASSERT_EQ(a.row(q), b.row(q)) << "q " << q;
}

TEST(Dense, RoundTripsEveryPattern) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Rng rng(seed);
    std::string text;
    const HeadMask head = test::random_head_mask(rng, 60, text);
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, text));
    const std::vector<uint8_t> dense = to_dense(head);
    for (int64_t q = 0; q < head.q_len; ++q) {
      for (int64_t k = 0; k < head.kv_len; ++k) {
        ASSERT_EQ(dense[q * head.kv_len + k], head.contains(q, k)) << q << ", " << k;
      }
    }
    expect_same_positions(masks::from_dense(dense, head.q_len, head.kv_len).head(0, 0), head);
  }
}

struct Noise {
  explicit Noise(uint64_t seed) {
    Rng rng(seed);
    q_len = uniform(rng, 0, 20);
    kv_len = uniform(rng, 0, 20);
    const int64_t rarity = uniform(rng, 1, 5);
    dense.resize(q_len * kv_len);
    for (uint8_t& x : dense) x = uniform(rng, 0, rarity) == 0;
  }
  int64_t q_len, kv_len;
  std::vector<uint8_t> dense;
};

TEST(Dense, RoundTripsNoise) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const auto [q_len, kv_len, dense] = Noise(seed);
    EXPECT_EQ(to_dense(masks::from_dense(dense, q_len, kv_len).head(0, 0)), dense)
        << "seed " << seed;
  }
}

TEST(Dense, FindsTheSlicesOfSimpleMasks) {
  const auto found = [](const Mask& mask) {
    return masks::from_dense(to_dense(mask.head(0, 0)), mask.q_len(), mask.kv_len()).head(0, 0);
  };
  for (const Mask& mask :
       {masks::full(7, 9), masks::causal(9, 9), masks::causal(5, 9), masks::causal(9, 5),
        masks::causal_sliding_window(20, 20, 4), masks::full_sliding_window(20, 20, 4)}) {
    EXPECT_EQ(found(mask).area(), mask.area(1, 1, 1)) << mask.name();
    EXPECT_EQ(found(mask).slices.size(), 1u) << mask.name();
  }
}

TEST(Dense, RefusesWrongAndHugeSizes) {
  const std::vector<uint8_t> dense(12);
  EXPECT_THROW(masks::from_dense(dense, 3, 5), Error);
  EXPECT_THROW(masks::from_dense(dense, -3, -4), Error);
  EXPECT_THROW(to_dense(masks::causal(1 << 15, 1 << 14).head(0, 0)), Error);
}

TEST(RowIntervals, MakeTheMaskOfTheirPositions) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const auto [q_len, kv_len, dense] = Noise(seed);
    std::vector<int64_t> row_begin{0};
    std::vector<int32_t> begins, ends;
    for (int64_t q = 0; q < q_len; ++q) {
      for (int64_t k = 0; k < kv_len; ++k) {
        const bool before = k > 0 && dense[q * kv_len + k - 1];
        if (!before && dense[q * kv_len + k]) begins.push_back(static_cast<int32_t>(k));
        if (before && !dense[q * kv_len + k]) ends.push_back(static_cast<int32_t>(k));
      }
      if (ends.size() < begins.size()) ends.push_back(static_cast<int32_t>(kv_len));
      row_begin.push_back(std::ssize(begins));
    }
    const Mask mask = masks::from_row_intervals({row_begin, begins, ends}, kv_len);
    EXPECT_EQ(to_json(mask), to_json(masks::from_dense(dense, q_len, kv_len))) << "seed " << seed;
  }
}

TEST(RowIntervals, RefuseWhatIsNotApartOrOutside) {
  const auto make = [](std::vector<int64_t> row_begin, std::vector<int32_t> begins,
                       std::vector<int32_t> ends) {
    return masks::from_row_intervals({row_begin, begins, ends}, 9).area(1, 1, 1);
  };
  EXPECT_EQ(make({0, 2, 2, 3}, {0, 5, 8}, {4, 6, 9}), 6);
  EXPECT_THROW(make({0, 2}, {0, 4}, {4, 6}), Error);  // touch
  EXPECT_THROW(make({0, 2}, {5, 0}, {6, 4}), Error);  // descend
  EXPECT_THROW(make({0, 1}, {3}, {3}), Error);        // empty
  EXPECT_THROW(make({0, 1}, {3}, {10}), Error);       // beyond the keys
  EXPECT_THROW(make({0, 1}, {-1}, {3}), Error);       // before them
  EXPECT_THROW(make({0, 2}, {3}, {5}), Error);        // more than there are
  EXPECT_THROW(make({0, 1, 0}, {3}, {5}), Error);     // rows that go back
  EXPECT_THROW(make({0, 1}, {3, 6}, {5}), Error);     // an end is missing
}

TEST(ColumnIntervals, RoundTripWhereTheyExist) {
  int exist = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Rng rng(seed);
    std::string text;
    const HeadMask head = test::random_head_mask(rng, 60, text);
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, text));
    int64_t most = 0;  // hidden row intervals of a column
    for (int64_t k = 0; k < head.kv_len; ++k) {
      int64_t hidden = 0;
      for (int64_t q = 0; q < head.q_len; ++q) {
        hidden += !head.contains(q, k) && (q == 0 || head.contains(q - 1, k));
      }
      most = std::max(most, hidden);
    }
    const auto columns = to_column_intervals(head);
    ASSERT_EQ(columns.has_value(), most <= 2);
    if (!columns) continue;
    ++exist;
    if (head.kv_len == 0) continue;
    expect_same_positions(masks::from_column_intervals(*columns, head.q_len).head(0, 0), head);
  }
  EXPECT_GT(exist, 500);
}

TEST(ColumnIntervals, OfCausalAreItsUpperTriangle) {
  const auto columns = to_column_intervals(masks::causal(4, 4).head(0, 0));
  ASSERT_TRUE(columns);
  EXPECT_EQ(columns->upper_start, (std::vector<int64_t>{0, 0, 0, 0}));
  EXPECT_EQ(columns->upper_end, (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(columns->lower_start, (std::vector<int64_t>{4, 4, 4, 4}));
  EXPECT_EQ(columns->lower_end, (std::vector<int64_t>{4, 4, 4, 4}));
}

TEST(ColumnIntervals, MayOverlapOrCross) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Rng rng(seed);
    const int64_t q_len = uniform(rng, 0, 12), kv_len = uniform(rng, 1, 12);
    masks::ColumnIntervals c;
    for (int64_t k = 0; k < kv_len; ++k) {
      c.lower_start.push_back(uniform(rng, 0, q_len));
      c.lower_end.push_back(uniform(rng, c.lower_start[k], q_len));
      c.upper_start.push_back(uniform(rng, 0, q_len));
      c.upper_end.push_back(uniform(rng, c.upper_start[k], q_len));
    }
    const HeadMask head = masks::from_column_intervals(c, q_len).head(0, 0);
    for (int64_t q = 0; q < q_len; ++q) {
      for (int64_t k = 0; k < kv_len; ++k) {
        const bool hidden = (c.lower_start[k] <= q && q < c.lower_end[k]) ||
                            (c.upper_start[k] <= q && q < c.upper_end[k]);
        ASSERT_EQ(head.contains(q, k), !hidden) << "seed " << seed << ": " << q << ", " << k;
      }
    }
  }
}

TEST(ColumnIntervals, RefuseWhatDoesNotFit) {
  const masks::ColumnIntervals good{{4}, {4}, {0}, {1}};
  EXPECT_EQ(masks::from_column_intervals(good, 4).area(1, 1, 1), 3);
  auto bad = good;
  bad.lower_end = {5};
  EXPECT_THROW(masks::from_column_intervals(bad, 4), Error);
  bad.lower_end = {3};
  EXPECT_THROW(masks::from_column_intervals(bad, 4), Error);
  bad.lower_end = {};
  EXPECT_THROW(masks::from_column_intervals(bad, 4), Error);
}

TEST(CuSeqlens, RoundTripPackedSequences) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Rng rng(seed);
    const test::MaskCase c = test::random_case("cu_seqlens", rng, 60);
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, c.text));
    const auto chain = to_cu_seqlens(c.mask.head(0, 0));
    ASSERT_TRUE(chain);
    expect_same_positions(masks::from_cu_seqlens(chain->q, chain->k, chain->causal).head(0, 0),
                          c.mask.head(0, 0));
  }
}

TEST(CuSeqlens, AreFoundOnlyInChains) {
  int chains = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Rng rng(seed);
    std::string text;
    const HeadMask head = test::random_head_mask(rng, 60, text);
    const auto chain = to_cu_seqlens(head);
    if (!chain) continue;
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, text));
    ++chains;
    expect_same_positions(masks::from_cu_seqlens(chain->q, chain->k, chain->causal).head(0, 0),
                          head);
  }
  EXPECT_GT(chains, 100);
  EXPECT_FALSE(to_cu_seqlens(masks::causal_sliding_window(9, 9, 3).head(0, 0)));
  EXPECT_FALSE(to_cu_seqlens(masks::prefix_lm_causal(9, 3).head(0, 0)));
  EXPECT_FALSE(to_cu_seqlens(masks::global_sliding(20, 2, 3).head(0, 0)));
}

TEST(CuSeqlens, AreTheDocuments) {
  const int64_t docs[] = {3, 0, 4, 2};
  const auto causal = to_cu_seqlens(masks::causal_document(docs).head(0, 0));
  ASSERT_TRUE(causal);
  EXPECT_TRUE(causal->causal);
  EXPECT_EQ(causal->q, (std::vector<int64_t>{0, 3, 7, 9}));
  EXPECT_EQ(causal->k, causal->q);
  const auto full = to_cu_seqlens(masks::full_document(docs).head(0, 0));
  ASSERT_TRUE(full);
  EXPECT_FALSE(full->causal);
  EXPECT_EQ(full->q, causal->q);
}

}  // namespace
}  // namespace verbatim
