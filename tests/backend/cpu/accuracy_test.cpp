// Every feature against the double-precision reference, by its error ratio.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/cpu/cases.h"
#include "backend/cpu/plans.h"

namespace verbatim::test {
namespace {

constexpr TileShape kTile{32, 48};

void expect_accurate(const Problem& problem, const Mask& mask, TileShape tile = kTile,
                     Order order = Order::ascending, int splits = 1, int64_t gap = 0,
                     double amplitude = 1) {
  Case c(problem, mask, 7, gap, amplitude);
  c.run(forward_plan(problem, mask, tile, splits), backward_plan(problem, mask, tile, order));
  const Check check = c.check();
  EXPECT_TRUE(check.within(2)) << "error ratios: o " << check.o.ratio << " lse " << check.lse.ratio
                               << " dq " << check.dq->ratio << " dk " << check.dk->ratio << " dv "
                               << check.dv->ratio << "; " << c.describe();
  EXPECT_TRUE(c.guards_intact()) << c.describe();
}

Problem small(int64_t q_len, int64_t kv_len) {
  return {.batch = 2,
          .q_heads = 4,
          .kv_heads = 2,
          .q_len = q_len,
          .kv_len = kv_len,
          .head_dim = 32,
          .head_dim_v = 32};
}

TEST(Accuracy, FullAndCausalOfUnequalLengths) {
  for (const auto& [q, k] : {std::pair<int64_t, int64_t>{150, 150}, {70, 130}, {130, 70}}) {
    expect_accurate(small(q, k), masks::full(q, k));
    expect_accurate(small(q, k), masks::causal(q, k));
    expect_accurate(small(q, k), masks::causal_sliding_window(q, k, 20));
  }
}

TEST(Accuracy, EveryStaticMask) {
  const int64_t docs[] = {31, 0, 77, 42, 13}, prefixes[] = {5, 0, 50, 42, 1}, n = 163;
  for (const Mask& mask :
       {masks::full_sliding_window(n, n, 17), masks::full_document(docs),
        masks::causal_document(docs), masks::share_question(docs), masks::causal_blockwise(docs),
        masks::global_sliding(n, 9, 20), masks::prefix_lm_causal(n, 60),
        masks::prefix_lm_document(docs, prefixes), masks::block_causal_document(docs, 16)})
    expect_accurate(small(n, n), mask);
}

TEST(Accuracy, EveryDtypeAndOddHeadDims) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    for (const auto& [d, dv] : {std::pair<int64_t, int64_t>{64, 64}, {1, 5}, {40, 96}, {256, 17}}) {
      Problem p = small(97, 97);
      p.dtype = dtype;
      p.head_dim = d;
      p.head_dim_v = dv;
      expect_accurate(p, masks::causal(97, 97), kTile, Order::ascending, 1, 3);
    }
  }
}

TEST(Accuracy, ScaleSoftcapAndDropout) {
  Problem p = small(100, 100);
  p.scale = 0.31;
  expect_accurate(p, masks::causal(100, 100));
  p.softcap = 1.5;
  expect_accurate(p, masks::causal(100, 100));
  p.dropout = 0.25;
  p.seed = 99;
  expect_accurate(p, masks::causal(100, 100));
  p.softcap = 0;
  expect_accurate(p, masks::full(100, 100), {24, 41});
}

// All visible keys have the same probability, and no gradient reaches Q or K.
TEST(Accuracy, AScaleOfZeroMakesProbabilitiesEqual) {
  for (const double softcap : {0.0, 1.5}) {
    Problem p = small(100, 100);
    p.scale = 0;
    p.softcap = softcap;
    expect_accurate(p, masks::causal(100, 100));
    Case c(p, masks::causal(100, 100));
    c.run(forward_plan(p, c.mask, kTile), backward_plan(p, c.mask, kTile, Order::ascending));
    for (int64_t q = 0; q < p.q_len; ++q)
      EXPECT_FLOAT_EQ(c.lse.row_view().row(0, 0)[q], std::log(static_cast<float>(q + 1)));
    for (const GuardedTensor* t : {&c.dq, &c.dk})
      for (int64_t l = 0; l < 100; ++l) EXPECT_EQ(t->get(0, l, 0, 0), 0);
  }
}

TEST(Accuracy, LargeScoresOnBothSides) {
  Problem p = small(90, 90);
  p.scale = 4;
  for (const double amplitude : {3.0, 8.0})
    expect_accurate(p, masks::causal(90, 90), kTile, Order::ascending, 1, 0, amplitude);
}

TEST(Accuracy, EveryOrderAndSplit) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    Problem p = small(200, 200);
    p.dtype = dtype;
    for (const Order order :
         {Order::ascending, Order::descending, Order::rotating, Order::split_group}) {
      expect_accurate(p, masks::causal(200, 200), {16, 32}, order, 3, 5);
      expect_accurate(p, masks::full(200, 200), {32, 32}, order, 2);
    }
  }
}

TEST(Accuracy, EveryResidueOfLengthModuloTile) {
  Problem p = small(0, 0);
  p.batch = 1;
  p.q_heads = p.kv_heads = 1;
  p.head_dim = p.head_dim_v = 8;
  for (int64_t n = 0; n <= 66; ++n) {
    p.q_len = p.kv_len = n;
    expect_accurate(p, masks::causal(n, n), {16, 32});
    p.kv_len = n / 2;
    expect_accurate(p, masks::causal(n, n / 2), {16, 32});
  }
}

}  // namespace
}  // namespace verbatim::test
