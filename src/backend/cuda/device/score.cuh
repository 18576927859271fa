// From a product of Q and K to a probability: scale, softcap, dropout.
#pragma once

#include "backend/cuda/device/params.h"

namespace verbatim::cuda {

inline constexpr float kLog2e = 1.4426950408889634f;

/// log2(e) * softcap(scale * qk), so that P = exp2(score - log2(e) * LSE).
__device__ inline float score_log2(const Scalars& scalars, float qk) {
  if (scalars.softcap == 0) return qk * scalars.scale_log2;
  return tanhf(qk * scalars.scale / scalars.softcap) * scalars.softcap * kLog2e;
}

/// d softcap(x) / dx at the x whose score_log2() is given.
__device__ inline float softcap_slope(const Scalars& scalars, float score) {
  if (scalars.softcap == 0) return 1;
  const float tanh = score / (scalars.softcap * kLog2e);
  return fmaf(-tanh, tanh, 1.0f);
}

/// Elements that dropout keeps: bit 4 n + 2 i + j stands for (q + 8 i, k + 8 n + j), which lie in
/// query tile `q_tile` of `head`; h is the query head.
template <int kColumns>
__device__ uint32_t kept(const Dropout& dropout, const PlanView& plan, int32_t head, int32_t q_tile,
                         int64_t h, int64_t q, int64_t k) {
  if (!dropout.enabled()) return ~0u;
  const DropoutOrigin origin = plan.dropout_origin(head, q_tile);
  q -= origin.q;
  k -= origin.k;
  h += plan.first_q_head;
  uint32_t bits = 0;
#pragma unroll 1
  for (int n = 0; n < kColumns; ++n) {
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      const uint32_t key = static_cast<uint32_t>(k) + 8 * n, row = static_cast<uint32_t>(q) + 8 * i;
      const uint32_t draws = dropout.keep8(origin.sequence, h, row, key / 8);
      const bool crosses = key % 8 == 7;
      const uint32_t next =
          crosses ? dropout.keep8(origin.sequence, h, row, key / 8 + 1) : draws >> (key % 8 + 1);
      bits |= (draws >> (key % 8) & 1 | (next & 1) << 1) << (4 * n + 2 * i);
    }
  }
  return bits;
}

}  // namespace verbatim::cuda
