// Softcap and dropout in the sm90 backward's consumers.
#pragma once

#include "backend/cuda/device/plan_view.h"
#include "backend/cuda/sm90/bwd/config.h"
#include "backend/cuda/sm90/bwd/params.h"
#include "backend/cuda/sm90/fragment.cuh"
#include "backend/cuda/sm90/ptx.cuh"

namespace verbatim::cuda::sm90::bwd {

/// Where dropout counts from in the visits of a chain: a KV tile lies in one sequence, and so do
/// the queries that see it.
struct DropoutPlace {
  uint32_t sequence = 0;
  uint32_t q = 0;  // of the sequence's first query
  uint32_t k = 0;  // of the KV tile's first key, in its sequence

  __device__ static DropoutPlace of(const BackwardParams& p, const Chain90& chain, int32_t row) {
    const int32_t q_tile = row % p.hand_off.max_q_tiles;
    const DropoutOrigin origin = p.plan.dropout_origin(chain.cursor.head, q_tile);
    return {static_cast<uint32_t>(origin.sequence), static_cast<uint32_t>(origin.q),
            static_cast<uint32_t>(chain.kv_begin - origin.k)};
  }
};

/// Bit i of word w: dropout keeps element 32 w + i of this thread's S^T fragment, counted as in
/// visible_bits(). `q` and `k`: the tile's first query and the warp's first key in their sequence.
/// A draw is for 8 keys of a query: for each query of a word a lane draws the warp's 16 keys, and
/// the lanes exchange them.
template <int kWords>
__device__ __forceinline__ void kept_bits(uint32_t (&bits)[kWords], const Dropout& dropout,
                                          uint32_t sequence, uint32_t q_head, uint32_t q,
                                          uint32_t k) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t blocks = k % 8 == 0 ? 2 : 3;
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    uint32_t mine = 0;  // of queries `lane` and `lane` + 32: the 16 keys of each
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      uint32_t draws = 0;  // of the keys from the last multiple of 8
#pragma unroll 1
      for (uint32_t b = 0; b < blocks; ++b) {
        draws |= dropout.keep8(sequence, q_head, q + 64 * w + 32 * i + lane, k / 8 + b) << (8 * b);
      }
      mine |= (draws >> k % 8 & 0xffff) << (16 * i);
    }
    bits[w] = 0;
#pragma unroll
    for (int m = 0; m < 8; ++m) {  // columns 8 * (m / 2) + 2 * (lane % 4) + m % 2, and 32 behind
      const int from = m / 2 * 8 + lane % 4 * 2 + m % 2;
      const uint32_t keys = __shfl_sync(~0u, mine, from) >> (lane / 4) & 0x01010101;
      bits[w] |= ((keys | keys >> 6) & 0x00050005) << (m / 2 * 4 + m % 2);
    }
  }
}

/// From scores in powers of two (capped; -inf: hidden) and dP to P and dS in 16 bits, pairs of
/// elements in order; `stats` of the tile's rows. P lacks the factor of dropout, which dV gets.
template <class C, int kWords, class Scores, class Words>
__device__ __forceinline__ void weigh(const Scores& scores, const Scores& dp, const RowStats* stats,
                                      const uint32_t (&kept)[kWords], float softcap_inverse,
                                      float dropout_scale, Words& p_words, Words& ds_words) {
  using Element = typename C::Element;
  const auto* pairs = reinterpret_cast<const float4*>(stats) + threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < C::kTileQ / 2; i += 4) {  // two columns, two rows of each
    const float4 pair = pairs[i];
    const float lse[2] = {pair.x, pair.z}, delta[2] = {pair.y, pair.w};
#pragma unroll
    for (int r = i; r < i + 4; r += 2) {
      float p[2], ds[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const bool keep = kept[r / 32] & 1u << (r % 32 + e);
        const float tanh = scores(r + e) * softcap_inverse;
        const float slope = __saturatef(fmaf(-tanh, tanh, 1.0f));  // of a hidden score 0, not NaN
        const float full = ptx::exp2_approx(scores(r + e) - lse[e]);
        const float change = fmaf(keep ? dp(r + e) : 0.0f, dropout_scale, -delta[e]);
        p[e] = keep ? full : 0.0f;
        ds[e] = full * slope * change;
      }
      p_words(r / 2) = pack<Element>(p[0], p[1]);
      ds_words(r / 2) = pack<Element>(ds[0], ds[1]);
    }
  }
}

}  // namespace verbatim::cuda::sm90::bwd
