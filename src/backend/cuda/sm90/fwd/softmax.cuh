// Online softmax of a warpgroup's accumulator, and what may happen to scores around it.
#pragma once

#include "backend/cuda/sm90/fragment.cuh"
#include "backend/cuda/sm90/tanh.cuh"
#include "core/dropout.h"

namespace verbatim::cuda::sm90::fwd {

/// Online softmax of a thread's two rows (row r and row r + 8 of the accumulator). `base` is what
/// is subtracted from a row's scores: the maximum of its first scores that it sees, replaced only
/// when P grows beyond kLargest. So most visits need no maximum, and O is seldom rescaled. A row
/// decides from its own scores alone. `sum` is the thread's share of the row's sum, which row_sum()
/// joins over the four threads. Scores, ((e, row, j)), may come with a base subtracted already:
/// their exponents are scale * score + plus[row].
struct OnlineSoftmax {
  static constexpr float kLargest = 1024;  // sum of a thread's P in a row of one visit; fits f16

  float base[2], sum[2];  // base times scale_log2; -inf: no key so far
  bool based;             // all rows of the warp have seen a key

  __device__ void reset() {
    base[0] = base[1] = -INFINITY;
    sum[0] = sum[1] = 0;
    based = false;
  }

  /// What to subtract from exponents of row r. A row without a key so far keeps its -inf, which
  /// must not meet itself.
  __device__ float finite_base(int r) const { return base[r] == -INFINITY ? 0.0f : base[r]; }

  /// Gives rows a new base, their greatest exponent: those without one, and those where one of the
  /// four threads added too much. What rows have so far is to be multiplied with `rescale`. Called
  /// by a whole warp.
  template <int kCount, class Scores>
  __device__ void rebase(const Scores& scores, float scale, const float (&plus)[2],
                         const float (&added)[2], float (&rescale)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = -INFINITY;
      bool moves = base[r] == -INFINITY || !(added[r] <= kLargest);
#pragma unroll
      for (int i = 2 * r; i < kCount; i += 4) top = fmaxf(top, fmaxf(scores(i), scores(i + 1)));
#pragma unroll
      for (int other = 1; other < 4; other *= 2) {
        top = fmaxf(top, __shfl_xor_sync(~0u, top, other));
        moves |= __shfl_xor_sync(~0u, moves, other);
      }
      top = fmaf(top, scale, plus[r]);
      rescale[r] = moves && base[r] != -INFINITY ? ptx::exp2_approx(base[r] - top) : 1.0f;
      sum[r] *= rescale[r];
      if (moves) base[r] = top;
    }
    based = __all_sync(~0u, base[0] != -INFINITY && base[1] != -INFINITY);
  }

  /// p[i] = exp2(exponent(i)), and the thread's sums of its two rows.
  template <int kCount, class Exponent>
  static __device__ void exponentiate(float (&p)[kCount], Exponent&& exponent, float (&added)[2]) {
    // Two sums a row, of even and odd columns: a single one would wait for its own latency.
    float sums[2][2] = {};
    // Row by row, which ptxas schedules best.
#pragma unroll
    for (int row = 0; row < 2; ++row) {
#pragma unroll
      for (int column = 0; column < kCount / 2; ++column) {
        const int i = column / 2 * 4 + 2 * row + column % 2;
        p[i] = ptx::exp2_approx(exponent(i));
        sums[row][column % 2] += p[i];
      }
    }
    added[0] = sums[0][0] + sums[0][1];
    added[1] = sums[1][0] + sums[1][1];
  }

  /// Whether no thread of the warp has added more than kLargest; a NaN is more.
  static __device__ bool fits(const float (&added)[2]) {
    return __all_sync(~0u, added[0] <= kLargest && added[1] <= kLargest);
  }

  /// The sum of row r, joined over its four threads.
  __device__ float row_sum(int r) const {
    const float pair = sum[r] + __shfl_xor_sync(~0u, sum[r], 1);
    return pair + __shfl_xor_sync(~0u, pair, 2);
  }
};

/// Rounds P to pairs of Elements, the A operand of the second GEMM: the same order of registers.
/// With kDrop, elements whose bit of `kept` is 0 become 0: bit i of row r is the row's i-th
/// element.
template <class Element, bool kDrop, class Pairs, int kCount>
__device__ void round_to(Pairs& pairs, const float (&p)[kCount], const uint32_t (&kept)[2]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const uint32_t bits = kDrop ? kept[i % 2] >> (i / 2 * 2) : 3;
    pairs(i) = pack<Element>(bits & 1 ? p[2 * i] : 0, bits & 2 ? p[2 * i + 1] : 0);
  }
}

/// Which of a thread's elements in a 64 x kColumns tile of P dropout keeps: bit 2 j + e of
/// `kept[r]` stands for row q + 8 r and key k_begin + 8 j + 2 t + e, positions in their sequence.
/// Draws come in blocks of 8 keys: the four threads of a row draw 4 blocks and share the bits.
template <int kColumns>
__device__ void draw_kept(uint32_t (&kept)[2], const Dropout& dropout, uint32_t sequence,
                          uint32_t q_head, uint32_t q, uint32_t k_begin, int t) {
  static_assert(kColumns % 32 == 0 && kColumns <= 128);
  const uint32_t shift = k_begin % 8;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    // Bits of the 32 keys that start at a multiple of 8.
    const auto keep32 = [&](uint32_t k_block) {
      uint32_t bits = dropout.keep8(sequence, q_head, q + 8 * r, k_block + t) << (8 * t);
      bits |= __shfl_xor_sync(~0u, bits, 1);
      bits |= __shfl_xor_sync(~0u, bits, 2);
      return bits;
    };
    uint32_t bits = keep32(k_begin / 8);
    kept[r] = 0;
#pragma unroll
    for (int group = 0; group < kColumns / 32; ++group) {
      const uint32_t next = keep32(k_begin / 8 + 4 * (group + 1));
      const uint32_t keep = __funnelshift_r(bits, next, shift) >> (2 * t);
      bits = next;
#pragma unroll
      for (int j = 0; j < 4; ++j) kept[r] |= (keep >> (8 * j) & 3) << (8 * group + 2 * j);
    }
  }
}

}  // namespace verbatim::cuda::sm90::fwd
