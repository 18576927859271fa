// Masks of one tile: bands in the tile's coordinates, and the bits they leave to a thread.
#pragma once

#include <type_traits>

#include "backend/cuda/sm90/fwd/config.h"

namespace verbatim::cuda::sm90 {

/// `slice` relative to the tile whose first query and key are q0 and k0 and that has `width` keys.
__device__ inline Band make_band(const Slice& slice, int64_t q0, int64_t k0, int32_t width) {
  const auto near = [](int64_t x, int64_t low, int64_t high) {
    return static_cast<int32_t>(x < low ? low : x > high ? high : x);
  };
  // Rows and columns of a tile are at most 256: beyond +-1024 a bound no longer matters.
  constexpr int64_t kFar = 1024;
  Band band;
  band.q_begin = near(slice.q_begin - q0, 0, kFar);
  band.q_end = near(slice.q_end - q0, 0, kFar);
  band.k_begin = near(slice.k_begin - k0, 0, width);
  band.k_end = near(slice.k_end - k0, 0, width);
  band.lo = near(slice.lo - k0 + q0, -kFar, kFar);
  band.hi = near(slice.hi - k0 + q0, -kFar, kFar) + 1;
  return band;
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
      band = make_band(order.slices[order.slice_ids[visit.slice_begin + i]], visit.q_begin,
                       visit.k_begin, visit.k_width);
    }
    seen[0] |= Bits::of(band, row, t);
    seen[1] |= Bits::of(band, row + 8, t);
  }
#pragma unroll
  for (int i = 0; i < Config::tile_kv / 2; ++i) {
    const int bit = i / 4 * 2 + i % 2;
    if (!(seen[i / 2 % 2] >> bit & 1)) scores(i) = -INFINITY;
  }
}

}  // namespace verbatim::cuda::sm90
