// Extremes: nothing visible, infinities, NaN, large LSE, wrong tensors.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "backend/cpu/cases.h"
#include "backend/cpu/plans.h"

namespace verbatim::test {
namespace {

constexpr TileShape kTile{16, 32};
constexpr float kInf = std::numeric_limits<float>::infinity();

Problem problem_of(int64_t q_len, int64_t kv_len, Dtype dtype = Dtype::f32) {
  return {.batch = 1,
          .q_heads = 2,
          .kv_heads = 1,
          .q_len = q_len,
          .kv_len = kv_len,
          .head_dim = 16,
          .head_dim_v = 16,
          .dtype = dtype};
}

void run(Case& c) {
  c.run(forward_plan(c.problem, c.mask, kTile, 2),
        backward_plan(c.problem, c.mask, kTile, Order::ascending));
}

TEST(Edge, RowsAndKeysThatNothingSees) {
  // Bottom-right causal with fewer keys: the first 60 queries see nothing.
  Case c(problem_of(100, 40), masks::causal(100, 40));
  run(c);
  for (int64_t q = 0; q < 60; ++q) {
    EXPECT_EQ(c.lse.row_view().row(0, 0)[q], -kInf);
    for (int64_t d = 0; d < 16; ++d) {
      EXPECT_EQ(c.o.get(0, q, 0, d), 0);
      EXPECT_EQ(c.dq.get(0, q, 0, d), 0);
    }
  }
  const int64_t lengths[] = {10};
  Case padded(problem_of(40, 100), masks::full(40, 100).with_key_lengths(lengths));
  run(padded);
  for (int64_t k = 10; k < 100; ++k)
    for (int64_t d = 0; d < 16; ++d) {
      EXPECT_EQ(padded.dk.get(0, k, 0, d), 0);
      EXPECT_EQ(padded.dv.get(0, k, 0, d), 0);
    }
  EXPECT_TRUE(padded.check().within(2));
}

// V and dO are zeros of either sign, and so is every sum; a scale below 0 would make -0 of +0.
TEST(Edge, ResultsThatAreZeroArePositive) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16})
    for (const double scale : {0.2, -0.2}) {
      Problem p = problem_of(60, 60, dtype);
      p.scale = scale;
      Case c(p, masks::causal(60, 60));
      for (GuardedTensor* input : {&c.v, &c.dout})
        for (int64_t l = 0; l < 60; ++l)
          for (int64_t h = 0; h < input->view().shape[2]; ++h)
            for (int64_t d = 0; d < 16; ++d)
              input->set(0, l, h, d, (l + d) % 3 == 0 ? 0.0f : -0.0f);
      run(c);
      for (const GuardedTensor* output : {&c.o, &c.dq, &c.dk, &c.dv})
        for (int64_t l = 0; l < 60; ++l)
          for (int64_t h = 0; h < output->view().shape[2]; ++h)
            for (int64_t d = 0; d < 16; ++d) {
              const float x = output->get(0, l, h, d);
              ASSERT_TRUE(x == 0 && !std::signbit(x)) << x << ", scale " << scale;
            }
    }
}

TEST(Edge, LengthsZeroAndOne) {
  for (const auto& [q, k] : {std::pair<int64_t, int64_t>{0, 0}, {0, 5}, {5, 0}, {1, 1}, {1, 70}}) {
    Case c(problem_of(q, k), masks::full(q, k));
    run(c);
    EXPECT_TRUE(c.check().within(2)) << c.describe();
  }
}

TEST(Edge, KeysBehindThePaddingMayHoldAnything) {
  const int64_t lengths[] = {37};
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    const Mask mask = masks::causal(80, 80).with_key_lengths(lengths);
    Case clean(problem_of(80, 80, dtype), mask), dirty(problem_of(80, 80, dtype), mask);
    for (int64_t k = 37; k < 80; ++k)
      for (int64_t d = 0; d < 16; ++d) {
        dirty.k.set(0, k, 0, d, d % 2 ? kInf : std::nanf(""));
        dirty.v.set(0, k, 0, d, d % 3 ? std::nanf("") : -kInf);
      }
    run(clean);
    run(dirty);
    EXPECT_EQ(clean.hashes(), dirty.hashes()) << to_string(dtype);
  }
}

/// Rows of the outputs that a non-finite element of row `at` may reach: with q or dout, that query
/// and the keys it sees; with k or v, the queries that see the key and all keys those see.
struct Reach {
  std::vector<bool> queries, keys;

  Reach(const HeadMask& mask, bool query_row, int64_t at) : queries(mask.q_len), keys(mask.kv_len) {
    for (int64_t q = 0; q < mask.q_len; ++q) {
      queries[q] = query_row ? q == at : mask.contains(q, at);
      for (int64_t k = 0; k < mask.kv_len && queries[q]; ++k)
        if (mask.contains(q, k)) keys[k] = true;
    }
  }
};

void expect_equal_out_of_reach(const GuardedTensor& got, const GuardedTensor& clean,
                               const std::vector<bool>& reach) {
  for (int64_t l = 0; l < static_cast<int64_t>(reach.size()); ++l)
    for (int64_t d = 0; d < 16 && !reach[l]; ++d)
      ASSERT_EQ(got.get(0, l, 0, d), clean.get(0, l, 0, d)) << "row " << l;
}

TEST(Edge, NonFiniteRowsReachOnlyTheRowsThatAttendToThem) {
  constexpr int64_t kRow = 43;
  for (const Mask& mask : {masks::causal(90, 90), masks::causal_sliding_window(90, 90, 7)}) {
    Case clean(problem_of(90, 90), mask);
    run(clean);
    for (const float poison : {std::nanf(""), kInf, -kInf}) {
      for (int which = 0; which < 4; ++which) {
        SCOPED_TRACE(std::to_string(poison) + " in tensor " + std::to_string(which) + " under " +
                     mask.name());
        Case c(problem_of(90, 90), mask);
        GuardedTensor* tensors[] = {&c.q, &c.k, &c.v, &c.dout};
        tensors[which]->set(0, kRow, 0, 5, poison);
        run(c);
        const Reach reach(mask.head(0, 0), which == 0 || which == 3, kRow);
        expect_equal_out_of_reach(c.o, clean.o, reach.queries);
        expect_equal_out_of_reach(c.dq, clean.dq, reach.queries);
        expect_equal_out_of_reach(c.dk, clean.dk, reach.keys);
        expect_equal_out_of_reach(c.dv, clean.dv, reach.keys);
        // An infinite dO makes dP - delta a difference of infinities, whose sign is a matter of
        // how delta is summed; everything else agrees with the formula in kind too.
        if (which == 3 && std::isinf(poison)) continue;
        const Check check = c.check();
        for (const Comparison* x : {&check.o, &check.lse, &*check.dq, &*check.dk, &*check.dv})
          EXPECT_EQ(x->nonfinite_mismatches, 0) << "at " << x->worst[1] << ", " << x->worst[3];
      }
    }
  }
}

TEST(Edge, LogSumExpFarFromZero) {
  for (const double shift : {-200.0, -95.0, 95.0, 200.0, 3000.0}) {
    Case c(problem_of(70, 70), masks::causal(70, 70));
    // One constant column adds `shift` to every score.
    for (int64_t l = 0; l < 70; ++l) {
      for (int64_t h = 0; h < 2; ++h) c.q.set(0, l, h, 0, 4);
      c.k.set(0, l, 0, 0, static_cast<float>(shift));
    }
    run(c);
    EXPECT_NEAR(c.lse.row_view().row(0, 0)[69], shift, 0.01 * std::abs(shift) + 6);
    const Check check = c.check();
    EXPECT_EQ(check.o.nonfinite_mismatches + check.dq->nonfinite_mismatches, 0);
    EXPECT_TRUE(check.within(2)) << "shift " << shift << " ratio " << check.worst_ratio();
  }
}

TEST(Edge, ExpandedInputsAndGappedRows) {
  const Problem p = {.batch = 2,
                     .q_heads = 4,
                     .kv_heads = 4,
                     .q_len = 50,
                     .kv_len = 50,
                     .head_dim = 24,
                     .head_dim_v = 24};
  Case c(p, masks::causal(50, 50), 1, 7);
  TensorView k = c.k.view();
  k.stride[0] = k.stride[2] = 0;  // every batch entry and head reads the same rows
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t l = 0; l < 50; ++l)
      for (int64_t h = 0; h < 4; ++h)
        for (int64_t d = 0; d < 24; ++d) c.k.set(b, l, h, d, c.k.get(0, l, 0, d));
  run(c);
  const auto expected = c.hashes();
  const auto backend = make_cpu_backend();
  ForwardTensors forward = c.forward();
  BackwardTensors backward = c.backward();
  forward.k = backward.k = k;
  backend->forward(std::make_shared<const Plan>(forward_plan(p, c.mask, kTile, 2)), forward, {});
  backend->backward(std::make_shared<const Plan>(backward_plan(p, c.mask, kTile, Order::ascending)),
                    backward, {});
  EXPECT_EQ(c.hashes(), expected);
}

TEST(Edge, WrongTensorsAreNamed) {
  const Problem p = problem_of(30, 30);
  Case c(p, masks::full(30, 30));
  const auto backend = make_cpu_backend();
  const auto plan = std::make_shared<const Plan>(forward_plan(p, c.mask, kTile));
  const auto argument_at_fault = [&](ForwardTensors tensors) -> std::string {
    try {
      backend->forward(plan, tensors, {});
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      return e.details().argument;
    }
    return "none";
  };
  ForwardTensors t = c.forward();
  t.k.shape[1] = 29;
  EXPECT_EQ(argument_at_fault(t), "k");
  t = c.forward();
  t.v.dtype = Dtype::bf16;
  EXPECT_EQ(argument_at_fault(t), "v");
  t = c.forward();
  t.q.stride[3] = 2;
  EXPECT_EQ(argument_at_fault(t), "q");
  t = c.forward();
  t.o.stride[2] = 0;
  EXPECT_EQ(argument_at_fault(t), "o");
  t = c.forward();
  t.v.stride[1] = std::numeric_limits<int64_t>::max() / 2;  // of f32
  EXPECT_EQ(argument_at_fault(t), "v");
  t = c.forward();
  t.lse.shape[2] = 31;
  EXPECT_EQ(argument_at_fault(t), "lse");
  t = c.forward();
  t.q.data = nullptr;
  EXPECT_EQ(argument_at_fault(t), "q");
  t = c.forward();
  const float scale = 2;
  t.k.scales = &scale;
  EXPECT_EQ(argument_at_fault(t), "k");
  EXPECT_EQ(argument_at_fault(c.forward()), "none");
  EXPECT_THROW(backend->backward(plan, c.backward(), {}), Error);
}

TEST(Edge, AnOutputIsMemoryOfItsOwn) {
  const Problem p = problem_of(30, 30);
  Case c(p, masks::full(30, 30));
  const auto backend = make_cpu_backend();
  const auto refusal = [&](auto tensors) -> std::string {
    try {
      if constexpr (std::is_same_v<decltype(tensors), ForwardTensors>)
        backend->forward(std::make_shared<const Plan>(forward_plan(p, c.mask, kTile)), tensors, {});
      else
        backend->backward(
            std::make_shared<const Plan>(backward_plan(p, c.mask, kTile, Order::ascending)),
            tensors, {});
    } catch (const Error& e) {
      return e.details().argument + ": " + e.details().got;
    }
    return "none";
  };
  ForwardTensors forward = c.forward();
  forward.o.data = forward.q.data;
  EXPECT_EQ(refusal(forward), "o: that of q");
  forward = c.forward();
  forward.lse.data = static_cast<float*>(forward.o.data);
  EXPECT_EQ(refusal(forward), "lse: that of o");
  BackwardTensors backward = c.backward();
  backward.dv.data = backward.dk.data;
  EXPECT_EQ(refusal(backward), "dv: that of dk");
  backward = c.backward();
  backward.dq.data = backward.dout.data;
  EXPECT_EQ(refusal(backward), "dq: that of dout");
  backward = c.backward();
  backward.dout = backward.o;  // inputs may share
  EXPECT_EQ(refusal(backward), "none");
}

}  // namespace
}  // namespace verbatim::test
