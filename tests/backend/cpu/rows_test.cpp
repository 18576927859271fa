// A row of a causal forward has the same O and LSE in training, where it is one of many, and where
// it is decoded: alone, in chunks, and in batches of unequal lengths.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "backend/composition.h"
#include "backend/cpu/passes.h"
#include "core/random.h"

namespace verbatim::test {
namespace {

constexpr int64_t kNoWindow = -1;

struct Shape {
  int64_t tokens, q_heads, kv_heads, head_dim;
  Dtype dtype;
  int64_t window;
};

/// Causal, aligned bottom-right.
HeadMask causal(int64_t q_len, int64_t kv_len, int64_t window) {
  const Mask mask = window == kNoWindow ? masks::causal(q_len, kv_len)
                                        : masks::causal_sliding_window(q_len, kv_len, window);
  return mask.head(0, 0);
}

void run(const Problem& problem, const Mask& mask, const HostTensors& tensors,
         const char* order = "auto") {
  PlanOptions options;
  options.pass = Pass::forward;
  options.order = order;
  cpu::run_forward(make_plan(problem, mask, options), tensors.forward(), {}, cpu::kernels());
}

const char* row_of(const TensorView& t, int64_t b, int64_t l, int64_t h) {
  return static_cast<const char*>(t.data) + t.offset(b, l, h) * size_of(t.dtype);
}

/// Copies rows [from, from + count) of entry 0 to the first rows of entry b.
void copy_rows(const TensorView& from, int64_t begin, int64_t count, const TensorView& to,
               int64_t b) {
  for (int64_t l = 0; l < count; ++l)
    for (int64_t h = 0; h < from.shape[2]; ++h)
      std::memcpy(const_cast<char*>(row_of(to, b, l, h)), row_of(from, 0, begin + l, h),
                  from.shape[3] * size_of(from.dtype));
}

struct Chunk {
  int64_t begin, rows;
};

/// Rows of `training` that come out otherwise when the chunks, each behind a cache of all keys
/// before it, are the entries of one batch.
int64_t rows_that_differ(const Shape& s, const Problem& whole, const HostTensors& training,
                         const std::vector<Chunk>& chunks, const char* order = "auto") {
  Problem p = whole;
  p.batch = std::ssize(chunks);
  p.q_len = p.kv_len = 0;
  for (const Chunk& chunk : chunks) {
    p.q_len = std::max(p.q_len, chunk.rows);
    p.kv_len = std::max(p.kv_len, chunk.begin + chunk.rows);
  }
  HostTensors decoded(p);  // NaN where a chunk has no row or key
  std::vector<HeadMask> heads;
  std::vector<int32_t> variant_of;
  for (const auto& [begin, rows] : chunks) {
    const int64_t b = std::ssize(heads), keys = begin + rows;
    HeadMask head = causal(rows, keys, s.window);
    head.q_len = p.q_len;
    head.kv_len = p.kv_len;
    variant_of.push_back(static_cast<int32_t>(b));
    heads.push_back(std::move(head));
    copy_rows(training.q.view(), begin, rows, decoded.q.view(), b);
    copy_rows(training.k.view(), 0, keys, decoded.k.view(), b);
    copy_rows(training.v.view(), 0, keys, decoded.v.view(), b);
  }
  run(p, Mask("chunks", "{}", std::move(heads), std::move(variant_of), p.batch, 1), decoded, order);
  int64_t differ = 0;
  for (size_t b = 0; b < chunks.size(); ++b)
    for (int64_t l = 0; l < chunks[b].rows; ++l)
      for (int64_t h = 0; h < p.q_heads; ++h) {
        const int64_t row = chunks[b].begin + l, entry = static_cast<int64_t>(b);
        const TensorView& o = decoded.o.view();
        differ += std::memcmp(row_of(o, entry, l, h), row_of(training.o.view(), 0, row, h),
                              static_cast<size_t>(o.shape[3] * size_of(o.dtype))) != 0 ||
                  std::memcmp(decoded.lse.row_view().row(entry, h) + l,
                              training.lse.row_view().row(0, h) + row, sizeof(float)) != 0;
      }
  return differ;
}

TEST(Rows, AreTheSameInTrainingAndDecoded) {
  const std::vector<Shape> shapes = {
      {700, 32, 8, 64, Dtype::bf16, kNoWindow}, {1100, 8, 1, 128, Dtype::bf16, kNoWindow},
      {900, 8, 1, 192, Dtype::f16, kNoWindow},  {2900, 4, 1, 64, Dtype::bf16, kNoWindow},
      {1500, 8, 1, 128, Dtype::bf16, 333},      {9000, 1, 1, 64, Dtype::bf16, kNoWindow},
      {9000, 2, 1, 64, Dtype::bf16, 700}};
  constexpr uint64_t kSeed = 17;
  for (const Shape& s : shapes) {
    Problem p{.q_heads = s.q_heads,
              .kv_heads = s.kv_heads,
              .q_len = s.tokens,
              .kv_len = s.tokens,
              .head_dim = s.head_dim,
              .head_dim_v = s.head_dim,
              .dtype = s.dtype};
    SCOPED_TRACE(fmt::format("seed {}, window {}, {}", kSeed, s.window, to_json(p)));
    HostTensors training(p);
    fill_uniform(training.q.view(), kSeed, -2, 2);
    fill_uniform(training.k.view(), kSeed + 1, -2, 2);
    fill_uniform(training.v.view(), kSeed + 2, -1, 1);
    run(p, Mask("causal", "{}", causal(s.tokens, s.tokens, s.window)), training);

    Random random(kSeed);
    for (const int64_t rows : {1, 300, 512, 2048}) {
      SCOPED_TRACE(fmt::format("chunks of {}", rows));
      // All chunks of the prompt, or of single rows some: the first, the last, around tiles.
      std::vector<int64_t> begins;
      for (int64_t begin = 0; begin < s.tokens; begin += rows)
        if (rows > 1 || begin == 0 || begin + 1 == s.tokens || random.chance(8.0 / s.tokens))
          begins.push_back(begin);
      for (const int64_t begin : begins)
        EXPECT_EQ(rows_that_differ(s, p, training, {{begin, std::min(rows, s.tokens - begin)}}), 0)
            << "from " << begin;
    }
    // A prompt from its start, a chunk in the middle, and decoded rows in one batch.
    const int64_t third = s.tokens / 3;
    EXPECT_EQ(rows_that_differ(s, p, training,
                               {{0, third}, {third, 100}, {s.tokens - 1, 1}, {third, 1}, {0, 1}}),
              0);
  }
}

/// Training of one causal head and decoding of some of its rows; `change` makes its inputs.
int64_t decoded_otherwise(int64_t head_dim, const char* order,
                          const std::function<void(HostTensors&)>& change) {
  const Shape s{300, 1, 1, head_dim, Dtype::f32, kNoWindow};
  Problem p{.q_len = s.tokens, .kv_len = s.tokens, .head_dim = head_dim, .head_dim_v = head_dim};
  HostTensors training(p);
  uint64_t seed = 5;
  for (const GuardedTensor* input : {&training.q, &training.k, &training.v})
    fill_normal(input->view(), seed++);
  change(training);
  run(p, Mask("causal", "{}", causal(s.tokens, s.tokens, s.window)), training, order);
  int64_t differ = 0;
  for (const Chunk& chunk : {Chunk{1, 1}, Chunk{30, 1}, Chunk{59, 1}, Chunk{77, 223}})
    differ += rows_that_differ(s, p, training, {chunk}, order);
  return differ;
}

// The first key has nearly all weight, and 0 in V; the others' products are too small for f32, and
// round to -0. Keys that a row does not see add zeros of their sign.
TEST(Rows, SumsOfNothingArePositiveZeros) {
  for (const int64_t dim : {64, 128}) {
    const auto change = [&](HostTensors& t) {
      for (int64_t l = 0; l < 300; ++l)
        for (int64_t d = 0; d < dim; ++d) {
          t.q.set(0, l, 0, d, d == 0 ? 87 * std::sqrt(static_cast<float>(dim)) : 0);
          t.k.set(0, l, 0, d, l == 0 && d == 0 ? 1 : 0);
          t.v.set(0, l, 0, d, l == 0 ? 0 : l < 60 ? -4e-8f : 1);
        }
    };
    EXPECT_EQ(decoded_otherwise(dim, "auto", change), 0) << dim;
  }
}

TEST(Rows, HaveOneNan) {
  for (const int64_t dim : {64, 128})
    for (const bool in_k : {false, true})
      for (const int64_t key : {3, 40, 130}) {
        const auto change = [&](HostTensors& t) {
          (in_k ? t.k : t.v).set(0, key, 0, 0, NAN);
          t.k.set(0, key + 9, 0, 1, INFINITY);
        };
        EXPECT_EQ(decoded_otherwise(dim, "ascending", change), 0) << dim << ", key " << key;
      }
}

}  // namespace
}  // namespace verbatim::test
