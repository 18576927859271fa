#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "random_mask.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

using test::Rng;
using test::uniform;

Slice random_slice(Rng& rng, int64_t q_len, int64_t kv_len) {
  Slice s{uniform(rng, 0, q_len), 0, uniform(rng, 0, kv_len), 0};
  s.q_end = uniform(rng, s.q_begin, q_len);
  s.k_end = uniform(rng, s.k_begin, kv_len);
  if (uniform(rng, 0, 2) > 0) s.lo = uniform(rng, -q_len - 2, kv_len + 2);
  if (uniform(rng, 0, 2) > 0) s.hi = uniform(rng, std::max(s.lo, -q_len - 2), kv_len + 5);
  return s;
}

std::string describe(const std::vector<Slice>& slices) {
  std::string text;
  for (const Slice& s : slices) {
    text +=
        fmt::format("[{},{})x[{},{}) {}..{}; ", s.q_begin, s.q_end, s.k_begin, s.k_end, s.lo, s.hi);
  }
  return text;
}

TEST(Slice, AreaCountsItsPositions) {
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    Rng rng(seed);
    const Slice s = random_slice(rng, 30, 30);
    int64_t count = 0;
    for (int64_t q = 0; q < 30; ++q) {
      for (int64_t k = 0; k < 30; ++k) count += s.contains(q, k);
    }
    ASSERT_EQ(s.area(), count) << "seed " << seed << ": " << describe({s});
  }
}

TEST(Slice, AreaIsExactUpToTheLargestPlane) {
  const int64_t n = int64_t{1} << 30;
  EXPECT_EQ((Slice{0, n, 0, n}).area(), n * n);
  EXPECT_EQ((Slice{0, n, 0, n, Slice::kNoLow, 0}).area(), n * (n + 1) / 2);
  EXPECT_EQ((Slice{0, n, 0, n, 1}).area(), n * (n - 1) / 2);
  EXPECT_EQ((Slice{0, n, 0, n, -1, 1}).area(), 3 * n - 2);
  EXPECT_EQ((Slice{0, n, 0, n, 5, 4}).area(), 0);
  EXPECT_EQ((Slice{7, 3, 0, n}).area(), 0);
}

TEST(HeadMask, CropHoldsThePositionsOfItsRectangle) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Rng rng(seed);
    std::string text;
    const HeadMask head = test::random_head_mask(rng, 40, text);
    const int64_t q0 = uniform(rng, 0, head.q_len), q1 = uniform(rng, q0, head.q_len);
    const int64_t k0 = uniform(rng, 0, head.kv_len), k1 = uniform(rng, k0, head.kv_len);
    SCOPED_TRACE(fmt::format("seed {}: {} to [{}, {}) x [{}, {})", seed, text, q0, q1, k0, k1));
    const HeadMask part = head.crop(q0, q1, k0, k1);
    part.validate();
    ASSERT_EQ(part.q_len, q1 - q0);
    ASSERT_EQ(part.kv_len, k1 - k0);
    for (int64_t q = q0; q < q1; ++q) {
      for (int64_t k = k0; k < k1; ++k) {
        ASSERT_EQ(part.contains(q - q0, k - k0), head.contains(q, k)) << q << ", " << k;
      }
    }
    std::vector<int64_t> inner;
    for (const int64_t edge : head.q_breaks) {
      if (q0 < edge && edge < q1) inner.push_back(edge - q0);
    }
    std::vector<int64_t> breaks = part.q_breaks;
    std::erase_if(breaks, [&](int64_t edge) { return edge == 0 || edge == q1 - q0; });
    ASSERT_EQ(breaks, inner);
    ASSERT_EQ(head.q_breaks.size() == head.k_breaks.size(),
              part.q_breaks.size() == part.k_breaks.size());
    if (sequences(head).size() == head.q_breaks.size() + 1) {  // documents stay documents
      ASSERT_EQ(sequences(part).size(), part.q_breaks.size() + 1);
    }
  }
}

TEST(HeadMask, CropOfADocumentIsTheDocumentAlone) {
  const int64_t packed[] = {5, 7, 4}, alone[] = {7};
  EXPECT_EQ(masks::causal_document(packed).head(0, 0).crop(5, 12, 5, 12),
            masks::causal_document(alone).head(0, 0));
}

TEST(HeadMask, IntersectHoldsThePositionsOfBoth) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Rng rng(seed);
    std::string text_a, text_b;
    HeadMask a = test::random_head_mask(rng, 40, text_a),
             b = test::random_head_mask(rng, 40, text_b);
    const int64_t q_len = std::min(a.q_len, b.q_len), kv_len = std::min(a.kv_len, b.kv_len);
    a = a.crop(0, q_len, 0, kv_len);
    b = b.crop(0, q_len, 0, kv_len);
    SCOPED_TRACE(fmt::format("seed {}: {} and {}", seed, text_a, text_b));
    const HeadMask both = a.intersect(b);
    both.validate();
    for (int64_t q = 0; q < q_len; ++q) {
      for (int64_t k = 0; k < kv_len; ++k) {
        ASSERT_EQ(both.contains(q, k), a.contains(q, k) && b.contains(q, k)) << q << ", " << k;
      }
    }
    ASSERT_EQ(b.intersect(a), both);
  }
}

TEST(HeadMask, CropKeepsDocumentsWithoutQueriesOrKeys) {
  const int64_t cu_q[] = {0, 4, 4, 8}, cu_k[] = {0, 3, 5, 9};
  const HeadMask packed = masks::from_cu_seqlens(cu_q, cu_k, false).head(0, 0);
  // The first document and the keys of the second; the keys of the last two.
  EXPECT_EQ(sequences(packed.crop(0, 4, 0, 5)).size(), 2u);
  EXPECT_EQ(sequences(packed.crop(0, 4, 0, 3)).size(), 1u);
  EXPECT_EQ(sequences(packed.crop(2, 4, 3, 9)).size(), 3u);
  EXPECT_EQ(sequences(packed.crop(0, 8, 0, 9)), sequences(packed));
}

TEST(HeadMask, IntersectKeepsDocumentsWithoutQueriesOrKeys) {
  // Keys 4 and 5 go with the first queries in one mask and with the last in the other.
  const int64_t cu_q[] = {0, 4, 8}, early[] = {0, 4, 9}, late[] = {0, 6, 9};
  const HeadMask both = masks::from_cu_seqlens(cu_q, early, false)
                            .intersect(masks::from_cu_seqlens(cu_q, late, false))
                            .head(0, 0);
  EXPECT_EQ(both.q_breaks, (std::vector<int64_t>{4, 4}));
  EXPECT_EQ(both.k_breaks, (std::vector<int64_t>{4, 6}));
  EXPECT_EQ(sequences(both).size(), 3u);
  const int64_t documents[] = {3, 0, 0, 5}, others[] = {3, 0, 1, 4};
  EXPECT_EQ(
      sequences(
          masks::causal_document(documents).intersect(masks::full_document(others)).head(0, 0))
          .size(),
      5u);
}

// Whatever documents two masks have, what both show has documents too.
TEST(HeadMask, IntersectionsOfDocumentsAreDocuments) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Rng rng(seed);
    const auto edges = [&](int64_t length, int64_t count) {
      std::vector<int64_t> edges{0, length};
      for (int64_t i = 1; i < count; ++i) edges.push_back(uniform(rng, 0, length));
      std::ranges::sort(edges);
      return edges;
    };
    const auto packed = [&] {
      const int64_t count = uniform(rng, 1, 5);
      const auto q = edges(12, count), k = edges(15, count);
      return masks::from_cu_seqlens(q, k, uniform(rng, 0, 1) == 1).head(0, 0);
    };
    const HeadMask both = packed().intersect(packed());
    both.validate();
    ASSERT_EQ(sequences(both).size(), both.q_breaks.size() + 1) << "seed " << seed;
  }
}

TEST(HeadMask, IntersectKeepsTheBreaksOfBoth) {
  const int64_t a[] = {3, 7}, b[] = {3, 2, 5};
  const HeadMask both =
      masks::full_document(a).head(0, 0).intersect(masks::full_document(b).head(0, 0));
  EXPECT_EQ(both.q_breaks, (std::vector<int64_t>{3, 5}));
  EXPECT_EQ(both.k_breaks, (std::vector<int64_t>{3, 5}));
}

TEST(HeadMask, ValidateFindsEveryOverlapAndNothingElse) {
  int overlapping = 0;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Rng rng(seed);
    HeadMask head{12, 12, {}, {}, {}};
    const int64_t count = uniform(rng, 1, 6);
    for (int64_t i = 0; i < count; ++i) head.slices.push_back(random_slice(rng, 12, 12));
    bool overlaps = false;
    for (int64_t q = 0; q < 12; ++q) {
      for (int64_t k = 0; k < 12; ++k) {
        int held = 0;
        for (const Slice& s : head.slices) held += s.contains(q, k);
        overlaps = overlaps || held > 1;
      }
    }
    overlapping += overlaps;
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, describe(head.slices)));
    if (overlaps) {
      ASSERT_THROW(head.validate(), Error);
    } else {
      ASSERT_NO_THROW(head.validate());
    }
  }
  EXPECT_GT(overlapping, 2000);
  EXPECT_LT(overlapping, 18000);
}

TEST(HeadMask, ValidateNamesTheFault) {
  const auto message = [](const HeadMask& head) -> std::string {
    try {
      head.validate();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      return e.what();
    }
    return "";
  };
  EXPECT_NE(message({4, 4, {{0, 1, 0, 1}, {0, 2, 0, 4}, {0, 3, 3, 4}}, {}, {}})
                .find("slices 0 and 1 overlap"),
            std::string::npos);
  EXPECT_NE(message({4, 4, {{0, 5, 0, 4}}, {}, {}}).find("q [0, 5) x k [0, 4)"), std::string::npos);
  EXPECT_NE(message({4, 4, {{2, 1, 0, 4}}, {}, {}}), "");
  EXPECT_NE(message({4, 4, {{0, 4, 0, 4, 1, 0}}, {}, {}}), "");
  EXPECT_NE(message({4, 4, {{0, 4, 0, 4, INT64_MIN}}, {}, {}}), "");
  EXPECT_NE(message({4, 4, {}, {-1}, {}}).find("q_breaks"), std::string::npos);
  EXPECT_NE(message({4, 4, {}, {}, {5}}).find("k_breaks"), std::string::npos);
  EXPECT_NE(message({4, 4, {}, {2, 1}, {}}).find("q_breaks"), std::string::npos);
  EXPECT_EQ(message({4, 4, {}, {0, 2, 2, 4}, {}}), "");  // around empty documents
  EXPECT_NE(message({-1, 4, {}, {}, {}}).find("q_len"), std::string::npos);
  EXPECT_NE(message({4, (int64_t{1} << 30) + 1, {}, {}, {}}).find("kv_len"), std::string::npos);
  EXPECT_EQ(message({4, 4, {{0, 4, 0, 4, Slice::kNoLow, 0}, {0, 4, 0, 4, 1}}, {1, 3}, {2}}), "");
}

TEST(HeadMask, RefusesWhatDoesNotFit) {
  const HeadMask head = masks::full(4, 6).head(0, 0);
  EXPECT_THROW(head.crop(0, 5, 0, 6), Error);
  EXPECT_THROW(head.crop(2, 1, 0, 6), Error);
  EXPECT_THROW(head.intersect(masks::full(6, 4).head(0, 0)), Error);
}

}  // namespace
}  // namespace verbatim
