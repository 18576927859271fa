// Masks of one tile: slices in the tile's coordinates, and the bits they leave to a thread.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/device/plan_view.h"

namespace verbatim::cuda::sm90 {

/// A slice in the coordinates of a visit's tiles: query r sees the keys of [max(k_begin, r + lo),
/// min(k_end, r + hi + 1)) if q_begin <= r < q_end.
struct alignas(4) Band {
  int16_t q_begin, q_end, k_begin, k_end, lo, hi;
};
static_assert(sizeof(Slice) == 6 * sizeof(int64_t) && sizeof(Band) == 6 * sizeof(int16_t));

constexpr int32_t kFar = 1024;  // beyond the tiles all positions are alike

/// Member `f` of `slice`, as that of Band, in the coordinates of the tiles at `q_begin` and
/// `k_begin`, of which the latter has `width` keys.
__device__ __forceinline__ int16_t band_member(int f, const Slice& slice, int32_t q_begin,
                                               int32_t k_begin, int32_t width) {
  // Positions have 32 bits, bounds of an open band more.
  if (f < 4) {
    const int32_t x = static_cast<int32_t>((&slice.q_begin)[f]) - (f < 2 ? q_begin : k_begin);
    return static_cast<int16_t>(min(max(x, 0), f == 3 ? width : kFar));
  }
  const int64_t x = (&slice.q_begin)[f] - (int64_t{k_begin} - q_begin);
  return static_cast<int16_t>(min(max(x, int64_t{-kFar}), int64_t{kFar}));
}

/// Whether no diagonal cuts the band within the tiles.
__device__ __forceinline__ bool is_box(const Band& band) {
  return band.lo == -kFar && band.hi == kFar;
}

/// `slice` in those coordinates.
__device__ __forceinline__ Band make_band(const Slice& slice, int32_t q_begin, int32_t k_begin,
                                          int32_t width) {
  const auto member = [&](int f) { return band_member(f, slice, q_begin, k_begin, width); };
  return {member(0), member(1), member(2), member(3), member(4), member(5)};
}

/// Which columns of a wgmma accumulator a thread holds before `column`: of columns 8 j + 2 t + e
/// (t = lane % 4, e = 0 or 1) bit 2 j + e.
__device__ __forceinline__ uint32_t columns_before(uint32_t column) {
  const int rest = static_cast<int>(column % 8) - 2 * static_cast<int>(threadIdx.x % 4);
  const uint32_t bits = column / 8 * 2 + min(max(rest, 0), 2);
  return bits >= 32 ? ~0u : (1u << bits) - 1;
}

/// Those of columns [begin, end).
__device__ __forceinline__ uint32_t columns_between(uint32_t begin, uint32_t end) {
  return columns_before(end) & ~columns_before(begin);
}

/// Makes -inf what is not seen: bit i of word w of `seen` stands for score(w, i). Seven bits at a
/// time: as many predicates as one instruction sets from a register.
template <int kWords, class Score>
__device__ __forceinline__ void hide_unseen(const uint32_t (&seen)[kWords], int bits,
                                            Score&& score) {
#pragma unroll
  for (int first = 0; first < bits; first += 7) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) {
      const uint32_t part = seen[w] >> first;
#pragma unroll
      for (int b = 0; b < min(7, bits - first); ++b) {
        if (!(part & (1u << b))) score(w, first + b) = -INFINITY;
      }
    }
  }
}

}  // namespace verbatim::cuda::sm90
