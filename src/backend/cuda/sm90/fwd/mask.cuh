// Masks of one tile: bands in the tile's coordinates, and the bits they leave to a thread.
#pragma once

#include <type_traits>

#include "backend/cuda/sm90/fwd/config.h"

namespace verbatim::cuda::sm90 {

/// A slice relative to the tile whose first query and key are q0 and k0 and that has `width` keys.
__device__ inline Band make_band(const Slice& slice, int32_t q0, int32_t k0, int32_t width) {
  // Rows and columns of a tile are at most 256: beyond +-1024 a bound no longer matters. Positions
  // have 32 bits, bounds of an open band more.
  constexpr int32_t kFar = 1024;
  const auto near = [](int64_t distance) {
    return static_cast<int32_t>(min(max(distance, int64_t{-kFar}), int64_t{kFar}));
  };
  const auto row = [&](int64_t q) { return min(max(static_cast<int32_t>(q) - q0, 0), kFar); };
  const auto column = [&](int64_t k) { return min(max(static_cast<int32_t>(k) - k0, 0), width); };
  return {row(slice.q_begin),  row(slice.q_end),           column(slice.k_begin),
          column(slice.k_end), near(slice.lo - (k0 - q0)), near(slice.hi - (k0 - q0)) + 1};
}

/// Whether some row of [begin, end) sees a key of the band.
__device__ inline bool shows_some(const Band& band, int32_t begin, int32_t end) {
  const int32_t first = max(max(begin, band.q_begin), band.k_begin - band.hi + 1);
  const int32_t last = min(min(end, band.q_end), band.k_end - band.lo);
  return first < last && band.k_begin < band.k_end && band.lo < band.hi;
}

/// Whether every row of [begin, end) sees `keys` keys from 0 on.
__device__ inline bool shows_all(const Band& band, int32_t begin, int32_t end, int32_t keys) {
  return band.q_begin <= begin && end <= band.q_end && band.k_begin <= 0 && keys <= band.k_end &&
         end - 1 + band.lo <= 0 && keys <= begin + band.hi;
}

/// Which of a thread's scores are visible. A thread of a warpgroup's 64 x kColumns accumulator
/// holds, of each of its rows, columns 8 j + 2 t + e (t = lane % 4, e = 0 or 1): bit 2 j + e.
template <int kColumns>
struct ColumnBits {
  using Word = std::conditional_t<(kColumns <= 128), uint32_t, uint64_t>;

  /// Bits of the columns before `column`.
  __device__ static Word before(int32_t column, int t) {
    const int32_t bits = 2 * (column >> 3) + min(max((column & 7) - 2 * t, 0), 2);
    return bits >= 8 * static_cast<int>(sizeof(Word)) ? ~Word{0} : (Word{1} << bits) - 1;
  }
  __device__ static Word of(const Band& band, int32_t row, int t) {
    const int32_t begin = max(band.k_begin, row + band.lo);
    const int32_t end = min(band.k_end, row + band.hi);
    const bool seen = band.q_begin <= row && row < band.q_end && begin < end;
    return seen ? before(end, t) & ~before(begin, t) : Word{0};
  }
};

/// Hides what no band of the visit shows: scores become -inf. `scores` is the thread's part of the
/// accumulator, ((e, row 0 or 1, j)); `row` its first row in the tile, the second is 8 below.
template <class Config, class Scores>
__device__ void hide(Scores& scores, const Visit<Config>& visit, int32_t row, int t) {
  using Bits = ColumnBits<Config::tile_kv>;
  typename Bits::Word seen[2] = {0, 0};
  for (int32_t i = 0; i < visit.band_count; ++i) {
    Band band;
    if (i < Config::inline_bands) {
      band = visit.bands[i];
    } else {
      const OrderView& order = *visit.order;
      band = make_band(order.slices[order.slice_ids[visit.slice_begin + i]], visit.place.q_begin,
                       visit.k_begin, visit.k_width);
    }
    seen[0] |= Bits::of(band, row, t);
    seen[1] |= Bits::of(band, row + 8, t);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    // Seven bits at a time: as many predicates as one instruction sets from a register.
#pragma unroll
    for (int first = 0; first < Config::tile_kv / 4; first += 7) {
      const auto part = static_cast<uint32_t>(seen[r] >> first);
#pragma unroll
      for (int b = 0; b < 7 && first + b < Config::tile_kv / 4; ++b) {
        const int bit = first + b;
        if (!(part & (1u << b))) scores(bit / 2 * 4 + 2 * r + bit % 2) = -INFINITY;
      }
    }
  }
}

}  // namespace verbatim::cuda::sm90
