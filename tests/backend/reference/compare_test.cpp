#include "backend/reference/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/random.h"
#include "support/guarded_tensor.h"

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
  EXPECT_EQ(compare(got.view(), kRows, exact, exact, 0).ratio, kMostRatio);
  EXPECT_EQ(compare(got.view(), kRows, exact, exact, NAN).floor, 0);
  EXPECT_TRUE(by_baseline.within(2));
  EXPECT_FALSE(by_baseline.within(1.9));
  const std::vector<double> floors{1, 1, 0.05};  // row 1 is further off, row 2 off by more
  const Comparison by_row = compare(got.view(), kRows, exact, exact, floors);
  EXPECT_EQ(by_row.ratio, 5);
  EXPECT_EQ(by_row.error, 0.5);
  EXPECT_EQ(by_row.floor, 0.05);
  EXPECT_EQ(by_row.worst, (std::array<int64_t, 4>{0, 2, 0, 0}));
}

TEST(Floors, OfLseKnowHowProductsAreAdded) {
  const auto floor_of = [](Dtype dtype, int64_t dim = 2) {
    const Problem problem{.head_dim = dim, .head_dim_v = dim, .dtype = dtype, .scale = 0.5};
    GuardedTensor q(dtype, {1, 1, 1, dim}), k(dtype, {1, 1, 1, dim}), v(dtype, {1, 1, 1, dim});
    for (GuardedTensor* tensor : {&q, &k, &v})
      for (int64_t d = 0; d < dim; ++d) tensor->set(0, 0, 0, d, d == 1 ? 4 : 0);
    Reference exact;
    exact.lse = {2};
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

TEST(Sha256Of, SeesElementsNotStrides) {
  GuardedTensor dense(Dtype::f32, {2, 3, 2, 4}), gapped(Dtype::f32, {2, 3, 2, 4}, {200, 40, 9, 1});
  fill_normal(dense.view(), 1);
  fill_normal(gapped.view(), 1);
  EXPECT_EQ(sha256_of(dense.view()), sha256_of(gapped.view()));
  gapped.set(1, 2, 1, 3, 0);
  EXPECT_NE(sha256_of(dense.view()), sha256_of(gapped.view()));
}

// The exact result of a causal mask, rounded to bf16: 2 query heads, 1 KV head.
class RoundedResult {
 public:
  explicit RoundedResult(int64_t length, int64_t dim = 8)
      : problem_{.q_heads = 2,
                 .kv_heads = 1,
                 .q_len = length,
                 .kv_len = length,
                 .head_dim = dim,
                 .head_dim_v = dim,
                 .dtype = Dtype::bf16},
        mask_(masks::causal(length, length)),
        selection_(Selection::all(problem_)) {
    uint64_t seed = 1;
    for (GuardedTensor* tensor : {&q_, &k_, &v_, &dout_}) fill_normal(tensor->view(), seed++);
    const Reference exact = reference_attention(problem_, mask_, q_.view(), k_.view(), v_.view(),
                                                dout_.view(), Arithmetic::exact, selection_);
    store(o_, selection_.queries, exact.o);
    store(dq_, selection_.queries, exact.dq);
    store(dk, selection_.keys, exact.dk);
    store(dv_, selection_.keys, exact.dv);
    for (size_t i = 0; i < selection_.queries.size(); ++i) {
      const RowIndex& row = selection_.queries[i];
      lse_.row_view().row(0, row.h)[row.l] = static_cast<float>(exact.lse[i]);
    }
  }

  Check check() const {
    return check_backward(problem_, mask_,
                          {q_.view(), k_.view(), v_.view(), o_.view(), dout_.view(),
                           lse_.row_view(), dq_.view(), dk.view(), dv_.view()},
                          selection_);
  }

 private:
  static void store(GuardedTensor& tensor, const std::vector<RowIndex>& rows,
                    const std::vector<double>& values) {
    const int64_t dim = tensor.view().shape[3];
    for (size_t i = 0; i < rows.size(); ++i)
      for (int64_t d = 0; d < dim; ++d)
        tensor.set(rows[i].b, rows[i].l, rows[i].h, d, static_cast<float>(values[i * dim + d]));
  }
  GuardedTensor made(int64_t heads) const {
    return {Dtype::bf16, {1, problem_.q_len, heads, problem_.head_dim}};
  }

  Problem problem_;
  Mask mask_;
  Selection selection_;
  GuardedTensor q_ = made(2), k_ = made(1), v_ = made(1), dout_ = made(2), o_ = made(2),
                dq_ = made(2), dv_ = made(1), lse_ = GuardedTensor::rows({1, 2, problem_.q_len});

 public:
  GuardedTensor dk = made(1);
};

TEST(Check, FindsOneWrongElement) {
  RoundedResult result(12);
  const Check good = result.check();
  EXPECT_TRUE(good.within(1)) << good.worst_ratio();
  EXPECT_GT(good.worst_ratio(), 0);

  result.dk.set(0, 5, 0, 6, result.dk.get(0, 5, 0, 6) + 0.5f);
  const Check bad = result.check();
  EXPECT_FALSE(bad.within(2));
  EXPECT_EQ(bad.dk->worst, (std::array<int64_t, 4>{0, 5, 0, 6}));
  EXPECT_TRUE(bad.dq->within(1) && bad.dv->within(1) && bad.o.within(1));
}

// The first keys of a causal mask have large gradients and errors, which hide none of later keys.
TEST(Check, FindsAnOffsetThatTheFirstKeysMayHave) {
  RoundedResult result(400, 64);
  EXPECT_TRUE(result.check().within(1)) << result.check().worst_ratio();
  const float offset = 0.1f;
  result.dk.set(0, 0, 0, 3, result.dk.get(0, 0, 0, 3) + offset);
  EXPECT_TRUE(result.check().within(1)) << result.check().dk->ratio;
  result.dk.set(0, 300, 0, 3, result.dk.get(0, 300, 0, 3) + offset);
  const Check bad = result.check();
  EXPECT_FALSE(bad.within(2)) << bad.dk->ratio;
  EXPECT_EQ(bad.dk->worst, (std::array<int64_t, 4>{0, 300, 0, 3}));
}

}  // namespace
}  // namespace verbatim
