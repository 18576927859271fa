// Products of e4m3 by wgmma (docs/tl-e4m3.md), beside what all dtypes have (tiles.cuh). Both
// factors of one lie along the summed axis, so V, whose rows lie across it, is turned in shared
// memory by a warp of its own: V arrives, is turned, is multiplied, each in a ring of buffers.
//
// A thread holds two neighbours of each 8 columns of scores; as a factor it should hold four of
// each 16. Which key a sum takes in which place is free as long as both factors have it so: P's
// registers stay as they lie, and V's keys are put where these have them. ldmatrix moves pairs of
// V's columns, so those of each 16 change places as well: the even ones in front of the odd.
#pragma once

#include "backend/cuda/device/tiles_e4m3.cuh"
#include "backend/cuda/sm90/tl/tiles.cuh"

namespace verbatim::cuda::sm90::tl {

using tiles::e4m3_of;

/// kRows x kCols bytes: rows of 64 or 128, swizzled over as many, as TMA writes them and wgmma
/// reads them.
template <int kRows_, int kCols_>
struct SharedTile<float_e4m3_t, kRows_, kCols_> {
  static constexpr int kRows = kRows_, kCols = kCols_, kSpan = kCols_;
  static_assert((kCols == 64 || kCols == 128) && kRows % 8 == 0);
  using Atom = conditional_t<kCols == 128, GMMA::Layout_K_SW128_Atom<float_e4m3_t>,
                             GMMA::Layout_K_SW64_Atom<float_e4m3_t>>;
  alignas(1024) float_e4m3_t data[kRows * kCols];

  /// (kRows, kCols)
  __host__ __device__ auto rows() {
    return make_tensor(make_smem_ptr(data), tile_to_shape(Atom{}, Shape<Int<kRows>, Int<kCols>>{}));
  }
  /// The element of `data` that rows()(row, column) is.
  static constexpr int place(int row, int column) {
    const int piece = column / 16 ^ (kCols == 128 ? row : row / 2) % (kCols / 16);
    return row * kCols + piece * 16 + column % 16;
  }
};

// ---- V, turned: row n of it has column turned_column(n) of V, place p of a row key turned_key(p).

constexpr int turned_key(int place) {
  return place / 16 * 16 + place % 4 / 2 * 8 + place % 16 / 4 * 2 + place % 2;
}
constexpr int turned_column(int row) { return row / 16 * 16 + row % 8 * 2 + row % 16 / 8; }

/// Where a lane reads 32 keys, of number k, by 16 columns, of number n, and where it writes them.
template <class Tile>
constexpr int read_at(int lane, int k, int n) {
  return Tile::place(32 * k + lane, 16 * n);
}
template <class Turned>
constexpr int written_at(int lane, int k, int n) {
  return Turned::place(16 * n + lane % 16, 32 * k + lane / 16 * 16);
}
/// Of keys 8 i + 2 t and the next, word i of `pairs` has columns 2 g and 2 g + 1: lane 4 g + t. Of
/// words 2 i and 2 i + 1 then one has column 2 g of four keys, and the next column 2 g + 1.
template <class Permute>
constexpr void turn_words(uint32_t (&pairs)[4], Permute byte_permute) {
  for (int i = 0; i < 4; i += 2) {
    const uint32_t low = pairs[i], high = pairs[i + 1];
    pairs[i] = byte_permute(low, high, 0x6420);
    pairs[i + 1] = byte_permute(low, high, 0x7531);
  }
}

/// turned = tile, with the rows from `used` on as 0: what lies there may be NaN, and 0 * NaN is
/// NaN. By a warp.
template <class Tile, class Turned>
__device__ __forceinline__ void turn(Tile& tile, Turned& turned, int32_t used) {
  static_assert(Tile::kRows == Turned::kCols && Tile::kCols == Turned::kRows);
  constexpr int kAtOnce = 4;  // so that one read's latency passes under the others
  const int lane = tiles::thread_here() % 32;
  if (used < Tile::kRows) {
#pragma unroll 1
    for (int at = used * Tile::kCols + lane * 16; at < Tile::kRows * Tile::kCols; at += 32 * 16)
      *reinterpret_cast<uint4*>(tile.data + at) = make_uint4(0, 0, 0, 0);
    __syncwarp();
  }
#pragma unroll 1
  for (int k = 0; k < Tile::kRows / 32; ++k) {
#pragma unroll
    for (int first = 0; first < Tile::kCols / 16; first += kAtOnce) {
      uint32_t words[kAtOnce][4];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        SM75_U16x8_LDSM_T::copy(
            reinterpret_cast<const uint128_t&>(tile.data[read_at<Tile>(lane, k, first + i)]),
            words[i][0], words[i][1], words[i][2], words[i][3]);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        turn_words(words[i], [](uint32_t low, uint32_t high, uint32_t bytes) {
          return __byte_perm(low, high, bytes);
        });
        ptx::store_matrices(ptx::smem_address(turned.data + written_at<Turned>(lane, k, first + i)),
                            words[i][0], words[i][1], words[i][2], words[i][3]);
      }
    }
  }
}

/// The same of the n-th tile of a ring, to the n-th of another.
template <class Tile, int kSlots, class Turned, int kTurnedSlots>
__device__ __forceinline__ void turn(Tile (&tiles)[kSlots], Slots<kSlots>& slots,
                                     Turned (&turned)[kTurnedSlots],
                                     Slots<kTurnedSlots>& turned_slots, uint32_t n, int32_t used) {
  wait_full(slots.full, n);
  wait_empty(turned_slots.empty, n);
  turn(use(tiles, n), use(turned, n), used);
  ptx::fence_async_shared();  // wgmma reads what was written here, TMA writes where it was read
  leave(slots.empty, n);
  leave(turned_slots.full, n);
}

// ---- P.

/// The score that byte `byte` of word `word` of P, as a factor, is made of.
constexpr int score_of(int word, int byte) {
  const int block = word / 2 * 2 + byte / 2, row = word % 2;  // of 8 columns
  return 4 * block + 2 * row + byte % 2;
}

/// P, a product (MMA_C), times kE4m3One as the first factor of the next (MMA_A). `cut`: of a tile
/// of which some row does not see all: a P that is seen and rounds to 0 becomes -0, a hidden one 0.
template <class Factor, class Sums>
__device__ __forceinline__ void round_to(Factor& factor, const Sums& sums, bool cut) {
  auto words = recast<uint32_t>(factor);
  const auto times = [&](int word, float scale) {
    const auto at = [&](int byte) { return scale * sums(score_of(word, byte)); };
    return e4m3_of(at(0), at(1), at(2), at(3));
  };
  CUTE_UNROLL
  for (int i = 0; i < size(words); ++i) words(i) = times(i, kE4m3One);
  if (!cut) return;
  CUTE_UNROLL
  for (int i = 0; i < size(words); ++i)
    words(i) |= tiles::marks_of_e4m3(words(i), times(i, tiles::kE4m3Seen));
}
/// -0 becomes 0 again, so that sums do not know which tiles were cut.
template <class Factor>
__device__ __forceinline__ void unmark(Factor& factor) {
  auto words = recast<uint32_t>(factor);
  CUTE_UNROLL
  for (int i = 0; i < size(words); ++i) {
    words(i) &= 0x7f7f7f7fu;
    warpgroup_fence_operand(words(i));  // in front of the products that read it
  }
}

/// sums += a b of a tile that holds NaN, as for other dtypes; but a row sees a key where its P is
/// -0, too.
template <class Sums, class Factor, int kRows_, int kCols_>
__device__ __forceinline__ void multiply_carefully(
    Sums& sums, const Factor& a, SharedTile<float_e4m3_t, kRows_, kCols_>& turned) {
  using Tile = SharedTile<float_e4m3_t, kRows_, kCols_>;
  constexpr int kWords = decltype(size(a))::value / 4;
  uint32_t words[kWords];  // in memory: bytes are counted through
  const auto from = recast<const uint32_t>(a);
  CUTE_UNROLL
  for (int i = 0; i < kWords; ++i) asm volatile("mov.b32 %0, %1;" : "=r"(words[i]) : "r"(from(i)));
  const int lane = tiles::thread_here() % 32;
  const auto value = [](uint32_t byte) {
    return static_cast<float>(float_e4m3_t::bitcast(static_cast<uint8_t>(byte)));
  };
  CUTE_NO_UNROLL
  for (int k = 0; k < Tile::kCols; ++k) {
    uint32_t byte[2];  // place k lies in lane k % 16 / 4 of the quad
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r)
      byte[r] =
          __shfl_sync(~0u, words[k / 16 * 2 + r], lane / 4 * 4 + k % 16 / 4) >> k % 4 * 8 & 0xff;
    CUTE_UNROLL
    for (int i = 0; i < size(sums); ++i) {
      const int row = i / 4 * 8 + lane % 4 * 2 + i % 2;
      const float x = value(byte[i / 2 % 2] & 0x7f),
                  y = static_cast<float>(turned.data[Tile::place(row, k)]);
      if (byte[i / 2 % 2] != 0) sums(i) = fmaf(x, y, sums(i));
    }
  }
}

/// Writes the first `rows` rows of a product with V turned at `target`, `stride` elements apart: a
/// thread has four neighbouring columns of each 16.
template <class Sums>
__device__ void write_rows(const Sums& sums, bfloat16_t* target, int64_t stride, int32_t rows,
                           int group) {
  const int32_t first = first_row(group), column = threadIdx.x % 4 * 4;
  CUTE_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int32_t row = first + 8 * r;
    if (row >= rows) continue;
    CUTE_UNROLL
    for (int block = 0; block < size(sums) / 4; block += 2) {
      const auto pair = [&](int i) {  // the columns 2 i and 2 i + 1 of the four
        const int even = 4 * block + 2 * r + i;
        return pack<bfloat16_t>(sums(even), sums(even + 4));
      };
      *reinterpret_cast<uint2*>(target + row * stride + 8 * block + column) =
          make_uint2(pair(0), pair(1));
    }
  }
}

}  // namespace verbatim::cuda::sm90::tl
