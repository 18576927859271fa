#include "backend/reference/reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/reference/compare.h"
#include "core/dropout.h"
#include "core/random.h"
#include "support/guarded_tensor.h"

namespace verbatim {
namespace {

using test::GuardedTensor;

// Inputs of a problem, N(0, 1).
struct Inputs {
  Problem problem;
  Mask mask;
  GuardedTensor q, k, v, dout;

  Inputs(Problem p, Mask m)
      : problem(p),
        mask(std::move(m)),
        q(p.dtype, {p.batch, p.q_len, p.q_heads, p.head_dim}),
        k(p.dtype, {p.batch, p.kv_len, p.kv_heads, p.head_dim}),
        v(p.dtype, {p.batch, p.kv_len, p.kv_heads, p.head_dim_v}),
        dout(p.dtype, {p.batch, p.q_len, p.q_heads, p.head_dim_v}) {
    uint64_t seed = 1;
    for (GuardedTensor* tensor : {&q, &k, &v, &dout}) fill_normal(tensor->view(), seed++);
  }
  Reference run(Arithmetic arithmetic = Arithmetic::exact, int threads = 1) const {
    return run(Selection::all(problem), arithmetic, threads);
  }
  Reference run(const Selection& selection, Arithmetic arithmetic = Arithmetic::exact,
                int threads = 1) const {
    return reference_attention(problem, mask, q.view(), k.view(), v.view(), dout.view(), arithmetic,
                               selection, threads);
  }
};

Problem small_problem() {
  return {.batch = 2,
          .q_heads = 4,
          .kv_heads = 2,
          .q_len = 7,
          .kv_len = 9,
          .head_dim = 5,
          .head_dim_v = 3};
}

// sum O * dO, which the gradients differentiate.
double loss(const Inputs& inputs) {
  const Reference result = inputs.run();
  const Problem& p = inputs.problem;
  double sum = 0;
  size_t i = 0;
  for (const RowIndex& row : Selection::all(p).queries)
    for (int64_t d = 0; d < p.head_dim_v; ++d)
      sum += result.o[i++] * inputs.dout.get(row.b, row.l, row.h, d);
  return sum;
}

// Central differences in every input element against `gradient`, rows in the order b, l, h.
void expect_gradient(Inputs& inputs, GuardedTensor& tensor, const std::vector<double>& gradient,
                     const char* name) {
  const auto shape = tensor.view().shape;
  size_t i = 0;
  for (int64_t b = 0; b < shape[0]; ++b)
    for (int64_t l = 0; l < shape[1]; ++l)
      for (int64_t h = 0; h < shape[2]; ++h)
        for (int64_t d = 0; d < shape[3]; ++d, ++i) {
          const float x = tensor.get(b, l, h, d), up = x + 0x1p-9f, down = x - 0x1p-9f;
          tensor.set(b, l, h, d, up);
          const double above = loss(inputs);
          tensor.set(b, l, h, d, down);
          const double below = loss(inputs);
          tensor.set(b, l, h, d, x);
          const double step = static_cast<double>(up) - down;
          ASSERT_NEAR(gradient[i], (above - below) / step, 2e-4)
              << name << " [" << b << ", " << l << ", " << h << ", " << d << "]";
        }
}

void expect_gradients(Problem problem, Mask mask) {
  Inputs inputs(problem, std::move(mask));
  const Reference result = inputs.run();
  expect_gradient(inputs, inputs.q, result.dq, "dq");
  expect_gradient(inputs, inputs.k, result.dk, "dk");
  expect_gradient(inputs, inputs.v, result.dv, "dv");
}

TEST(Reference, GradientsAreThoseOfTheForward) {
  expect_gradients(small_problem(), masks::full(7, 9));
  expect_gradients(small_problem(), masks::causal(7, 9));
}

TEST(Reference, GradientsWithScaleSoftcapAndDropout) {
  Problem problem = small_problem();
  problem.scale = 0.7;
  problem.softcap = 1.5;
  expect_gradients(problem, masks::causal_sliding_window(7, 9, 3));
  problem.dropout = 0.4;
  problem.seed = 11;
  expect_gradients(problem, masks::causal(7, 9));
}

TEST(Reference, ForwardByHand) {
  // One head, one query, two keys: S = (2, 0.5), so P = 1 / (1 + exp(-1.5)) and its complement.
  Problem problem{.q_len = 1, .kv_len = 2, .head_dim = 1, .head_dim_v = 1};
  problem.scale = 0.5;
  Inputs inputs(problem, masks::full(1, 2));
  inputs.q.set(0, 0, 0, 0, 2);
  inputs.k.set(0, 0, 0, 0, 2);
  inputs.k.set(0, 1, 0, 0, 0.5);
  inputs.v.set(0, 0, 0, 0, 10);
  inputs.v.set(0, 1, 0, 0, 20);
  const double p = 1 / (1 + std::exp(-1.5));
  Reference result = inputs.run();
  EXPECT_NEAR(result.o[0], 10 * p + 20 * (1 - p), 1e-12);
  EXPECT_NEAR(result.lse[0], std::log(std::exp(2.0) + std::exp(0.5)), 1e-12);
  ASSERT_EQ(result.key_norms.size(), 2u);
  EXPECT_NEAR(result.key_norms[0], p, 1e-12);
  EXPECT_NEAR(result.key_norms[1], 1 - p, 1e-12);
  EXPECT_NEAR(result.row_norms[0], std::hypot(p, 1 - p), 1e-12);

  inputs.problem.softcap = 3;
  const double s0 = 3 * std::tanh(2.0 / 3), s1 = 3 * std::tanh(0.5 / 3);
  EXPECT_NEAR(inputs.run().lse[0], std::log(std::exp(s0) + std::exp(s1)), 1e-12);

  inputs.problem.softcap = 0;
  inputs.problem.dropout = 0.5;
  while (Dropout::make(0.5, inputs.problem.seed).keep(0, 0, 0, 0) ||
         !Dropout::make(0.5, inputs.problem.seed).keep(0, 0, 0, 1))
    ++inputs.problem.seed;
  EXPECT_NEAR(inputs.run().o[0], 2 * 20 * (1 - p), 1e-12);
}

TEST(Reference, RowsWithoutKeysAndEmptyLengths) {
  Problem problem{.q_heads = 2, .kv_heads = 1, .q_len = 9, .kv_len = 4, .head_dim = 3};
  const Reference result = Inputs(problem, masks::causal(9, 4)).run();
  for (int64_t row = 0; row < 10; ++row) {  // queries 0 to 4 of both heads
    EXPECT_EQ(result.lse[row], -std::numeric_limits<double>::infinity());
    for (int64_t d = 0; d < problem.head_dim_v; ++d) EXPECT_EQ(result.o[row * 64 + d], 0);
    for (int64_t d = 0; d < 3; ++d) EXPECT_EQ(result.dq[row * 3 + d], 0);
  }
  EXPECT_TRUE(std::isfinite(result.lse[10]));

  problem.kv_len = 0;
  EXPECT_EQ(Inputs(problem, masks::full(9, 0)).run().lse[0],
            -std::numeric_limits<double>::infinity());
  problem.kv_len = 4;
  problem.q_len = 0;
  const Reference no_queries = Inputs(problem, masks::full(0, 4)).run();
  EXPECT_TRUE(std::ranges::all_of(no_queries.dk, [](double x) { return x == 0; }));
}

TEST(Reference, HugeScoresStayFinite) {
  Problem problem{.q_len = 4, .kv_len = 4, .head_dim = 8};
  for (double scale : {1000.0, -1000.0}) {
    problem.scale = scale;
    const Reference result = Inputs(problem, masks::full(4, 4)).run();
    for (double x : result.o) EXPECT_TRUE(std::isfinite(x));
    for (double x : result.dq) EXPECT_TRUE(std::isfinite(x));
    EXPECT_GT(std::abs(result.lse[0]), 88.7);
  }
}

TEST(Reference, NanReachesOnlyRowsThatAttend) {
  Problem problem{.q_len = 8, .kv_len = 8, .head_dim = 4, .head_dim_v = 4};
  const Reference clean = Inputs(problem, masks::causal_sliding_window(8, 8, 1)).run();
  Inputs inputs(problem, masks::causal_sliding_window(8, 8, 1));
  inputs.k.set(0, 3, 0, 2, std::nanf(""));  // key 3 is seen by queries 3 and 4, who see 2, 3 and 4
  const Reference result = inputs.run();
  for (int64_t row = 0; row < 8; ++row) {
    EXPECT_EQ(std::isnan(result.o[row * 4]), row == 3 || row == 4) << row;
    EXPECT_EQ(std::isnan(result.dq[row * 4]), row == 3 || row == 4) << row;
    EXPECT_EQ(std::isnan(result.dk[row * 4]), row >= 2 && row <= 4) << row;
    if (row < 3) {
      EXPECT_EQ(result.o[row * 4], clean.o[row * 4]) << row;
    }
  }
}

TEST(Reference, ASampleIsPartOfTheWhole) {
  Problem problem{.batch = 2,
                  .q_heads = 4,
                  .kv_heads = 2,
                  .q_len = 90,
                  .kv_len = 100,
                  .head_dim = 12,
                  .head_dim_v = 20};
  problem.dropout = 0.2;
  const Inputs inputs(problem, masks::causal(90, 100));
  const Selection all = Selection::all(problem);
  const Selection some = Selection::sample(problem, inputs.mask, 5, 20000);
  ASSERT_GT(some.queries.size(), 20u);
  ASSERT_GT(some.keys.size(), 4u);
  const Reference whole = inputs.run(all), part = inputs.run(some);
  const auto expect_part = [](const std::vector<RowIndex>& rows, const std::vector<double>& got,
                              const std::vector<RowIndex>& all_rows,
                              const std::vector<double>& expected) {
    const size_t dim = got.size() / rows.size();
    for (size_t i = 0; i < rows.size(); ++i) {
      const size_t j = std::ranges::find(all_rows, rows[i]) - all_rows.begin();
      for (size_t d = 0; d < dim; ++d) ASSERT_EQ(got[i * dim + d], expected[j * dim + d]);
    }
  };
  expect_part(some.queries, part.o, all.queries, whole.o);
  expect_part(some.queries, part.lse, all.queries, whole.lse);
  expect_part(some.queries, part.dq, all.queries, whole.dq);
  expect_part(some.keys, part.dk, all.keys, whole.dk);
  expect_part(some.keys, part.dv, all.keys, whole.dv);
}

TEST(Reference, ASampleKeepsItsBudget) {
  Problem problem{.q_heads = 2, .kv_heads = 1, .q_len = 16384, .kv_len = 16384};
  const Mask mask = masks::causal(16384, 16384);
  const Selection sample = Selection::sample(problem, mask, 1, 1 << 22);
  ASSERT_FALSE(sample.keys.empty());
  const int64_t rows = 16384 - sample.keys.front().l;  // every query from the first sampled key on
  EXPECT_LE(rows * (16384 - rows), 1 << 22);
}

TEST(Reference, ThreadsChangeNoBit) {
  Problem problem{.batch = 3, .q_heads = 4, .kv_heads = 2, .q_len = 20, .kv_len = 20};
  const Inputs inputs(problem, masks::causal(20, 20));
  const Reference one = inputs.run(Arithmetic::exact, 1), five = inputs.run(Arithmetic::exact, 5);
  EXPECT_EQ(one.o, five.o);
  EXPECT_EQ(one.dk, five.dk);
}

TEST(Reference, SameDtypeErrsByTheRoundingOfItsDtype) {
  for (const auto& [dtype, unit] : {std::pair(Dtype::f32, 0x1p-24), std::pair(Dtype::f16, 0x1p-11),
                                    std::pair(Dtype::bf16, 0x1p-8)}) {
    Problem problem{.q_heads = 2, .kv_heads = 2, .q_len = 64, .kv_len = 64, .dtype = dtype};
    const Inputs inputs(problem, masks::causal(64, 64));
    const Reference exact = inputs.run(), same = inputs.run(Arithmetic::same_dtype);
    const auto error = [](const std::vector<double>& a, const std::vector<double>& b) {
      double worst = 0, largest = 0;
      for (size_t i = 0; i < a.size(); ++i) {
        worst = std::max(worst, std::abs(a[i] - b[i]));
        largest = std::max(largest, std::abs(b[i]));
      }
      return worst / largest;
    };
    for (double e : {error(same.o, exact.o), error(same.dq, exact.dq), error(same.dk, exact.dk),
                     error(same.dv, exact.dv)}) {
      EXPECT_GT(e, unit / 8) << to_string(dtype);
      EXPECT_LT(e, unit * 16) << to_string(dtype);
    }
    EXPECT_LT(error(same.lse, exact.lse), 0x1p-20) << "LSE is f32 whatever the dtype";
  }
}

Reference forward_of(const Problem& p, const ForwardTensors& t, Arithmetic arithmetic) {
  return reference_attention(p, masks::full(p.q_len, p.kv_len), t.q, t.k, t.v, {}, arithmetic,
                             Selection::all(p), 1);
}

TEST(Reference, AnElementOfE4m3IsItsValueTimesTheScaleOfItsHead) {
  Problem p = small_problem();
  p.batch = 1;
  p.dtype = Dtype::e4m3;
  const Inputs codes(p, masks::full(7, 9));
  p.dtype = Dtype::f32;
  Inputs values(p, masks::full(7, 9));
  const std::vector<float> scales{0.5f, 3, 1.25f, 0.75f};
  ForwardTensors tensors{codes.q.view(), codes.k.view(), codes.v.view(), {}, {}};
  const auto scale = [&](const GuardedTensor& from, GuardedTensor& to, TensorView& view) {
    view.scales = scales.data();
    const auto [b, length, heads, dim] = view.shape;
    for (int64_t l = 0; l < length; ++l)
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t d = 0; d < dim; ++d) to.set(0, l, h, d, scales[h] * from.get(0, l, h, d));
  };
  scale(codes.q, values.q, tensors.q);
  scale(codes.k, values.k, tensors.k);
  scale(codes.v, values.v, tensors.v);
  const Reference expected =
      forward_of(p, {values.q.view(), values.k.view(), values.v.view(), {}, {}}, Arithmetic::exact);
  p.dtype = Dtype::e4m3;
  const Reference found = forward_of(p, tensors, Arithmetic::exact);
  EXPECT_EQ(found.o, expected.o);
  EXPECT_EQ(found.lse, expected.lse);
}

// Each P of a long row would be 0 in e4m3, were it rounded as it is.
TEST(Reference, E4m3KeepsTheSmallProbabilitiesOfLongRows) {
  const Problem p{.q_len = 2, .kv_len = 3000, .dtype = Dtype::e4m3};
  const Inputs inputs(p, masks::full(2, 3000));
  fill_uniform(inputs.v.view(), 4, 1, 2);
  const ForwardTensors tensors{inputs.q.view(), inputs.k.view(), inputs.v.view(), {}, {}};
  const Reference exact = forward_of(p, tensors, Arithmetic::exact);
  const Reference same = forward_of(p, tensors, Arithmetic::same_dtype);
  for (size_t i = 0; i < exact.o.size(); ++i) EXPECT_NEAR(same.o[i], exact.o[i], 0x1p-5);
  EXPECT_EQ(exact.product_norms.size(), 2u);
}

}  // namespace
}  // namespace verbatim
