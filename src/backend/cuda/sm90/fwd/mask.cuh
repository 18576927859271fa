// What the rows of a warpgroup see of a visit.
#pragma once

#include "backend/cuda/sm90/fwd/config.h"

namespace verbatim::cuda::sm90::fwd {

/// Whether some row of [begin, end) sees a key of the band.
__device__ __forceinline__ bool shows_some(const Band& band, int32_t begin, int32_t end) {
  const int32_t first = max(max(begin, int32_t{band.q_begin}), band.k_begin - band.hi);
  const int32_t last = min(min(end, int32_t{band.q_end}), band.k_end - band.lo);
  return first < last && band.k_begin < band.k_end && band.lo <= band.hi;
}

/// Whether every row of [begin, end) sees `keys` keys from 0 on.
__device__ __forceinline__ bool shows_all(const Band& band, int32_t begin, int32_t end,
                                          int32_t keys) {
  return band.q_begin <= begin && end <= band.q_end && band.k_begin <= 0 && keys <= band.k_end &&
         end - 1 + band.lo <= 0 && keys <= begin + band.hi + 1;
}

/// The band in the coordinates of half `h` of the keys.
__device__ __forceinline__ Band of_half(const Band& band, int h) {
  const int32_t shift = kHalfKeys * h;
  const auto key = [&](int32_t k) {
    return static_cast<int16_t>(min(max(k - shift, 0), kHalfKeys));
  };
  return {band.q_begin,
          band.q_end,
          key(band.k_begin),
          key(band.k_end),
          static_cast<int16_t>(band.lo - shift),
          static_cast<int16_t>(band.hi - shift)};
}

/// Which of a thread's scores some band of the visit shows: bits of its row `row` of the tile and
/// of the row 8 below.
template <class C>
__device__ __forceinline__ void visible_bits(uint32_t (&seen)[2], const typename C::Visit& visit,
                                             int32_t row) {
  static_assert(C::kTileKv <= 128);  // a row's keys of a thread are the bits of a word
  seen[0] = seen[1] = 0;
#pragma unroll 1
  for (int32_t i = 0; i < visit.band_count; ++i) {
    Band band;
    if (i < kInlineBands) {
      band = visit.bands[i];
    } else {
      const OrderView& order = *visit.order;
      band = make_band(order.slices[order.slice_ids[visit.slice_begin + i]], visit.queries.begin,
                       visit.k_begin, visit.k_width);
    }
    if constexpr (C::kHalves) {  // most rectangles are beside a warp's rows
      const int32_t top = row - static_cast<int32_t>(threadIdx.x) % 32 / 4;
      if (band.q_end <= top || band.q_begin >= top + kWarpRows) continue;
    }
    if (is_box(band)) {
      const uint32_t keys = columns_between(band.k_begin, band.k_end);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int32_t q = row + 8 * r;
        if (band.q_begin <= q && q < band.q_end) seen[r] |= keys;
      }
      continue;
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int32_t q = row + 8 * r;
      const int32_t begin = max(int32_t{band.k_begin}, q + band.lo);
      const int32_t end = min(int32_t{band.k_end}, q + band.hi + 1);
      const bool sees = band.q_begin <= q && q < band.q_end && begin < end;
      if (sees) seen[r] |= columns_between(begin, end);
    }
  }
}

/// Makes scores that are not seen -inf. `scores` is the thread's part of the accumulator,
/// ((e, row 0 or 1, j)).
template <class C, class Scores>
__device__ __forceinline__ void hide(Scores& scores, const uint32_t (&seen)[2]) {
  hide_unseen(seen, C::kTileKv / 4,
              [&](int r, int bit) -> float& { return scores(bit / 2 * 4 + 2 * r + bit % 2); });
}

/// Hides what no band of the visit shows.
template <class C, class Scores>
__device__ __forceinline__ void hide(Scores& scores, const typename C::Visit& visit, int32_t row) {
  uint32_t seen[2];
  visible_bits<C>(seen, visit, row);
  hide<C>(scores, seen);
}

}  // namespace verbatim::cuda::sm90::fwd
