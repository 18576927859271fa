#include "backend/reference/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/random.h"
#include "support/guarded_tensor.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

using test::GuardedTensor;

const std::vector<RowIndex> kRows = {{0, 0, 0}, {0, 1, 0}, {0, 2, 0}};

TEST(Compare, RatioIsOverTheLargerOfBaselineAndFloor) {
  GuardedTensor got(Dtype::f32, {1, 3, 1, 2});
  const std::vector<double> exact{1, 2, 3, 4, 5, 6};
  for (int64_t l = 0; l < 3; ++l)
    for (int64_t d = 0; d < 2; ++d) got.set(0, l, 0, d, static_cast<float>(1 + 2 * l + d));
  got.set(0, 1, 0, 1, 4.5f);
  got.set(0, 2, 0, 0, 5.25f);
  const std::vector<double> same{1, 2, 3, 4, 5, 6.25};
  const Comparison by_baseline = compare(got.view(), kRows, exact, same, 0.1);
  EXPECT_EQ(by_baseline.ratio, 2);
  EXPECT_EQ(by_baseline.worst, (std::array<int64_t, 4>{0, 1, 0, 1}));
  EXPECT_EQ(by_baseline.got, 4.5);
  EXPECT_EQ(by_baseline.expected, 4);
  EXPECT_EQ(compare(got.view(), kRows, exact, same, 1).ratio, 0.5);
  EXPECT_TRUE(std::isinf(compare(got.view(), kRows, exact, exact, 0).ratio));
  EXPECT_TRUE(by_baseline.within(2));
  EXPECT_FALSE(by_baseline.within(1.9));
}

TEST(Floors, OfLseKnowHowProductsAreAdded) {
  const auto floor_of = [](Dtype dtype, int64_t dim = 2) {
    const Problem problem{.head_dim = dim, .head_dim_v = dim, .dtype = dtype, .scale = 0.5};
    GuardedTensor q(dtype, {1, 1, 1, dim}), k(dtype, {1, 1, 1, dim}), v(dtype, {1, 1, 1, dim});
    for (GuardedTensor* tensor : {&q, &k, &v})
      for (int64_t d = 0; d < dim; ++d) tensor->set(0, 0, 0, d, d == 1 ? 4 : 0);
    const Reference exact{.lse = {2}};
    return rounding_floors(problem, q.view(), k.view(), v.view(), {}, exact).lse;
  };
  EXPECT_DOUBLE_EQ(floor_of(Dtype::bf16), 0x1p-24 * (8 + 2 + 2));
  EXPECT_DOUBLE_EQ(floor_of(Dtype::f32, 64), 0x1p-24 * (8 + 2 + 2));
  EXPECT_DOUBLE_EQ(floor_of(Dtype::f32, 256), 0x1p-24 * (2 * 8 + 2 + 2));
  EXPECT_DOUBLE_EQ(floor_of(Dtype::e4m3), 0x1p-13 * 8 + 0x1p-24 * (2 + 2));
}

TEST(Compare, CountsWhatIsNotFinite) {
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = NAN;
  GuardedTensor got(Dtype::f32, {1, 3, 1, 1});
  got.set(0, 0, 0, 0, -INFINITY);
  got.set(0, 1, 0, 0, NAN);
  got.set(0, 2, 0, 0, 1);
  const auto mismatches = [&](std::vector<double> exact) {
    return compare(got.view(), kRows, exact, exact, 1).nonfinite_mismatches;
  };
  EXPECT_EQ(mismatches({-kInf, kNan, 1}), 0);
  EXPECT_EQ(mismatches({kInf, kNan, 1}), 1);
  EXPECT_EQ(mismatches({-kInf, 1, 1}), 1);
  EXPECT_EQ(mismatches({kNan, 0, kNan}), 3);
  const std::vector<double> exact{-kInf, 1, 1};
  const Comparison comparison = compare(got.view(), kRows, exact, exact, 1);
  EXPECT_EQ(comparison.worst[1], 1);
  EXPECT_FALSE(comparison.within(1e9));
}

TEST(Compare, RowStatisticsAreIndexedByBatchLengthHead) {
  std::vector<float> lse{0, 1, 2, 10, 11, 12};  // [1, 2 heads, 3]
  const std::vector<RowIndex> rows = {{0, 2, 1}, {0, 0, 0}};
  const std::vector<double> exact{12, 0.5};
  const Comparison comparison = compare(RowView{lse.data(), {1, 2, 3}}, rows, exact, exact, 1);
  EXPECT_EQ(comparison.error, 0.5);
  EXPECT_EQ(comparison.worst, (std::array<int64_t, 4>{0, 0, 0, 0}));
}

TEST(CompareBits, SignedZerosDifferAndNansAreBytes) {
  GuardedTensor a(Dtype::bf16, {1, 2, 1, 3}), b(Dtype::bf16, {1, 2, 1, 3}, {99, 20, 5, 1});
  fill_normal(a.view(), 1);
  fill_normal(b.view(), 1);
  EXPECT_FALSE(compare_bits(a.view(), b.view()));
  a.set(0, 1, 0, 0, NAN);
  b.set(0, 1, 0, 0, NAN);
  EXPECT_FALSE(compare_bits(a.view(), b.view()));
  a.set(0, 1, 0, 1, 0.0f);
  b.set(0, 1, 0, 1, -0.0f);
  b.set(0, 1, 0, 2, 77);
  const BitDifference difference = compare_bits(a.view(), b.view());
  EXPECT_EQ(difference.count, 2);
  EXPECT_EQ(difference.first, (std::array<int64_t, 4>{0, 1, 0, 1}));
  EXPECT_THROW(compare_bits(a.view(), GuardedTensor(Dtype::f16, {1, 2, 1, 3}).view()), Error);
}

TEST(Sha256Of, SeesElementsNotStrides) {
  GuardedTensor dense(Dtype::f32, {2, 3, 2, 4}), gapped(Dtype::f32, {2, 3, 2, 4}, {200, 40, 9, 1});
  fill_normal(dense.view(), 1);
  fill_normal(gapped.view(), 1);
  EXPECT_EQ(sha256_of(dense.view()), sha256_of(gapped.view()));
  gapped.set(1, 2, 1, 3, 0);
  EXPECT_NE(sha256_of(dense.view()), sha256_of(gapped.view()));
}

// The exact result rounded to the dtype passes; one wrong element is found.
TEST(Check, FindsOneWrongElement) {
  Problem problem{.batch = 1,
                  .q_heads = 2,
                  .kv_heads = 1,
                  .q_len = 12,
                  .kv_len = 12,
                  .head_dim = 8,
                  .head_dim_v = 8,
                  .dtype = Dtype::bf16};
  const Mask mask = masks::causal(12, 12);
  GuardedTensor q(problem.dtype, {1, 12, 2, 8}), k(problem.dtype, {1, 12, 1, 8}),
      v(problem.dtype, {1, 12, 1, 8}), dout(problem.dtype, {1, 12, 2, 8}),
      o(problem.dtype, {1, 12, 2, 8}), dq(problem.dtype, {1, 12, 2, 8}),
      dk(problem.dtype, {1, 12, 1, 8}), dv(problem.dtype, {1, 12, 1, 8}),
      lse = GuardedTensor::rows({1, 2, 12});
  uint64_t seed = 1;
  for (GuardedTensor* tensor : {&q, &k, &v, &dout}) fill_normal(tensor->view(), seed++);
  const Selection all = Selection::all(problem);
  const Reference exact = reference_attention(problem, mask, q.view(), k.view(), v.view(),
                                              dout.view(), Arithmetic::exact, all);
  const auto store = [](GuardedTensor& tensor, const std::vector<RowIndex>& rows,
                        const std::vector<double>& values) {
    const int64_t dim = tensor.view().shape[3];
    for (size_t i = 0; i < rows.size(); ++i)
      for (int64_t d = 0; d < dim; ++d)
        tensor.set(rows[i].b, rows[i].l, rows[i].h, d, static_cast<float>(values[i * dim + d]));
  };
  store(o, all.queries, exact.o);
  store(dq, all.queries, exact.dq);
  store(dk, all.keys, exact.dk);
  store(dv, all.keys, exact.dv);
  for (size_t i = 0; i < all.queries.size(); ++i)
    lse.row_view().row(0, all.queries[i].h)[all.queries[i].l] = static_cast<float>(exact.lse[i]);

  const BackwardTensors tensors{q.view(),       k.view(),  v.view(),  o.view(), dout.view(),
                                lse.row_view(), dq.view(), dk.view(), dv.view()};
  const Check good = check_backward(problem, mask, tensors, all);
  EXPECT_TRUE(good.within(1)) << good.worst_ratio();
  EXPECT_GT(good.worst_ratio(), 0);

  dk.set(0, 5, 0, 6, dk.get(0, 5, 0, 6) + 0.5f);
  const Check bad = check_backward(problem, mask, tensors, all);
  EXPECT_FALSE(bad.within(2));
  EXPECT_EQ(bad.dk->worst, (std::array<int64_t, 4>{0, 5, 0, 6}));
  EXPECT_TRUE(bad.dq->within(1) && bad.dv->within(1) && bad.o.within(1));
}

}  // namespace
}  // namespace verbatim
