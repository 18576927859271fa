// Online softmax of a warpgroup's accumulator, and what may happen to scores around it.
#pragma once

#include "backend/cuda/sm90/tanh.cuh"
#include "core/dropout.h"

namespace verbatim::cuda::sm90 {

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Online softmax of a thread's two rows (row r and row r + 8 of the accumulator). `base` is what
/// is subtracted from the row's scores: a maximum of its first scores, replaced only when later
/// ones are beyond it by kSlack, so that O is seldom rescaled. `sum` is the thread's share of the
/// row's sum, which row_sum() joins over the four threads.
struct OnlineSoftmax {
  static constexpr float kSlack = 8;  // in powers of two: P stays below 256

  float base[2], sum[2];  // base times scale_log2; -inf: no key so far

  __device__ void reset() {
    base[0] = base[1] = -INFINITY;
    sum[0] = sum[1] = 0;
  }

  /// Turns kCount scores, ((e, row, j)), into exp2(scale_log2 * score - base) and takes them into
  /// the sum. `rescale` is what earlier results must be multiplied with: 1 or at most 2^-kSlack.
  template <int kCount, class Scores>
  __device__ void step(Scores& scores, float scale_log2, float (&rescale)[2]) {
    float minus[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      // Two chains a row, even and odd columns: a single one would wait for its own latency.
      float even = scores(2 * r), odd = scores(2 * r + 1);
#pragma unroll
      for (int i = 2 * r + 4; i < kCount; i += 4) {
        even = fmaxf(even, scores(i));
        odd = fmaxf(odd, scores(i + 1));
      }
      float top = fmaxf(even, odd);
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2)) * scale_log2;
      const bool grows = top > base[r] + kSlack;
      rescale[r] = grows ? exp2_fast(base[r] - top) : 1.0f;
      base[r] = grows ? top : base[r];
      // A row without a key so far keeps its -inf, which must not meet itself.
      minus[r] = base[r] == -INFINITY ? 0.0f : -base[r];
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      scores(i) = exp2_fast(fmaf(scores(i), scale_log2, minus[i / 2 % 2]));
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float even = scores(2 * r), odd = scores(2 * r + 1);
#pragma unroll
      for (int i = 2 * r + 4; i < kCount; i += 4) {
        even += scores(i);
        odd += scores(i + 1);
      }
      sum[r] = sum[r] * rescale[r] + (even + odd);
    }
  }

  /// The sum of row r, joined over its four threads.
  __device__ float row_sum(int r) const {
    const float pair = sum[r] + __shfl_xor_sync(~0u, sum[r], 1);
    return pair + __shfl_xor_sync(~0u, pair, 2);
  }
};

/// Sets the dropped elements of a 64 x kColumns tile of P to 0; `p` as in hide(), `q` and `k_begin`
/// the positions of the thread's first row and of the tile's first key in their sequence.
/// Draws come in blocks of 8 keys: the four threads of a row draw 4 blocks and share the bits.
template <int kColumns, class Scores>
__device__ void drop(Scores& p, const Dropout& dropout, uint32_t sequence, uint32_t q_head, uint32_t q,
                     uint32_t k_begin, int t) {
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
#pragma unroll
    for (int group = 0; group < (kColumns + 31) / 32; ++group) {
      const uint32_t next = keep32(k_begin / 8 + 4 * (group + 1));
      const uint32_t keep = __funnelshift_r(bits, next, shift);
      bits = next;
#pragma unroll
      for (int j = 4 * group; j < 4 * group + 4 && j < kColumns / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (!(keep >> (8 * (j % 4) + 2 * t + e) & 1)) p(4 * j + 2 * r + e) = 0;
        }
      }
    }
  }
}

}  // namespace verbatim::cuda::sm90
