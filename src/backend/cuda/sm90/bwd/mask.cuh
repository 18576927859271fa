// What a thread of the sm90 backward sees of a visit.
#pragma once

#include "backend/cuda/sm90/bwd/config.h"

namespace verbatim::cuda::sm90::bwd {

/// Bit i of the result: element i of this thread's S^T fragment is visible. Element i is at KV row
/// k_row + 8 * (i / 2 % 2) and query column 8 * (i / 4) + 2 * (lane % 4) + i % 2 of the tile.
template <class C, int kWords>
__device__ __forceinline__ void visible_bits(uint32_t (&bits)[kWords], const OrderView* orders,
                                             const typename C::Visit& visit, const Chain90& chain,
                                             int k_row) {
  // Queries that its KV row sees, and the row 8 below: 16 bits of a word each, or a word each.
  uint32_t seen[kWords] = {};
  constexpr int kShift = 32 - 16 * kWords;
  const int bands = visit.head.bands;
#pragma unroll 1
  for (int b = 0; b < bands; ++b) {
    Band band;
    if (b < C::kBands) {
      band = visit.bands[b];
    } else {
      const OrderView& order = orders[chain.cursor.order];
      band = make_band(order.slices[order.slice_ids[visit.slice_begin + b]], visit.q_begin,
                       chain.kv_begin, chain.kv_rows);
    }
    const bool box = is_box(band);
    const uint32_t queries = box ? columns_between(band.q_begin, band.q_end) : 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int k = k_row + 8 * half;
      if (k < band.k_begin || k >= band.k_end) continue;
      uint32_t own = queries;
      if (!box) {
        const int first = max(int{band.q_begin}, k - band.hi);  // queries [first, last) see k
        const int last = max(min(int{band.q_end}, k - band.lo + 1), 0);
        own = columns_between(first, last);
      }
      seen[half * (kWords - 1)] |= (own & (~0u >> kShift)) << (half * kShift);
    }
  }
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    bits[w] = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t pairs = seen[half * (kWords - 1)] >> (half * kShift + 16 * w) & 0xffff;
      pairs = (pairs | pairs << 8) & 0x00ff00ff;  // bits, spread to every second pair
      pairs = (pairs | pairs << 4) & 0x0f0f0f0f;
      pairs = (pairs | pairs << 2) & 0x33333333;
      bits[w] |= pairs << (2 * half);
    }
  }
}

/// Of keys [64 w, 64 w + 64) of a visit's tile, bit w: some query may see some of them, of at least
/// one w; bit 2 + w: every query sees all of them.
template <class C>
__device__ __forceinline__ uint32_t shown_halves(const typename C::Visit& visit) {
  const int bands = visit.head.bands;
  if (bands != 1) return bands == 0 ? 15 : 3;
  const Band band = visit.bands[0];
  const int begin = max(int{band.k_begin}, band.q_begin + band.lo);
  const int end = min(int{band.k_end}, band.q_end + band.hi);
  const uint32_t some = (begin < 64 && end > 0) | (begin < 128 && end > 64) << 1;
  const int whole_begin = max(int{band.k_begin}, C::kTileQ - 1 + band.lo);  // what all queries see
  const int whole_end = min(int{band.k_end}, band.hi + 1);
  const bool all = band.q_begin <= 0 && band.q_end >= C::kTileQ;
  const uint32_t whole = (all && whole_begin <= 0 && whole_end >= 64) |
                         (all && whole_begin <= 64 && whole_end >= 128) << 1;
  return (some == 0 ? 3 : some) | whole << 2;
}

}  // namespace verbatim::cuda::sm90::bwd
