// What a backward translated from TL for Hopper has of its own: tiles that one thread copies by
// TMA, and products of all warpgroups. Chains and visits (device/chains.cuh), sums in turns
// (device/sums.cuh) and what is done in registers (device/tiles.cuh) are those of other GPUs.
#pragma once

#include "backend/cuda/device/sums.cuh"
#include "backend/cuda/sm90/tl/tiles.cuh"

namespace verbatim::cuda::sm90::tl {

using sm90::init;
using tiles::add_keys;
using tiles::add_rows;
using tiles::begin_keys;
using tiles::continue_keys;
using tiles::copy_in;
using tiles::delta_of;
using tiles::end_keys;
using tiles::hide;
using tiles::multiply_carefully;
using tiles::next_chain;
using tiles::numbers;
using tiles::Place;
using tiles::probabilities;
using tiles::registers;
using tiles::start;
using tiles::Visit;
using tiles::Visits;

// ---- Copies.

/// Starts copying a tile: rows from `row` on, of which some may belong to what lies behind. Behind
/// a barrier that is behind its last reader.
template <class Element, int kTileRows, int kCols>
__device__ void copy_in(SharedTile<Element, kTileRows, kCols>& tile, uint64_t& full,
                        const CUtensorMap& map, int32_t row, int32_t head, int32_t batch) {
  if (tiles::thread_here() == 0) {
    ptx::mbarrier_arrive_expect(&full, sizeof(tile.data));
#pragma unroll
    for (int column = 0; column < kCols; column += kSpan)
      ptx::tma_load_4d(&map, &full, tile.data + column * kTileRows, column, row, head, batch);
  }
  __syncwarp();
}

/// Calls f(16-byte pieces of a span, [begin, end) of them that rows [first, last) have), by
/// threads.
template <class Tile, class F>
__device__ __forceinline__ void each_piece(Tile& tile, int32_t first, int32_t last, F f) {
  constexpr int kPieces = kSpan * 2 / 16;  // of a row, which the swizzle keeps in its row
#pragma unroll 1
  for (int column = 0; column < Tile::kCols; column += kSpan) {
    auto* span = reinterpret_cast<uint4*>(tile.data + column * Tile::kRows);
#pragma unroll 1
    for (int i = first * kPieces + tiles::thread_here(); i < last * kPieces;
         i += static_cast<int>(blockDim.x))
      f(span[i]);
  }
}

/// Waits until a tile has arrived in buffer `buffer` of the CTA; rows from `used` on become 0, for
/// what lies there may be NaN, and 0 * NaN is NaN. By all threads, in front of a barrier. `phases`:
/// the parity of each buffer's next copy.
template <class Tile, int kBuffers>
__device__ void await(Tile& tile, uint64_t (&full)[kBuffers], uint32_t& phases, int buffer,
                      int32_t used) {
  ptx::mbarrier_wait(&full[buffer], phases >> buffer & 1);
  phases ^= 1u << buffer;
  if (used >= Tile::kRows) return;
  each_piece(tile, used, Tile::kRows, [](uint4& piece) { piece = make_uint4(0, 0, 0, 0); });
  ptx::fence_async_shared();
}

/// Whether what this thread looks at of the first `used` rows holds a NaN or an infinity.
template <class Element, int kTileRows, int kCols>
__device__ bool nonfinite(SharedTile<Element, kTileRows, kCols>& tile, int32_t used) {
  constexpr uint32_t kExponent = is_same_v<Element, half_t> ? 0x7c00u : 0x7f80u;
  bool found = false;
  const auto look = [&](uint32_t word) {
    found |= (word & kExponent) == kExponent || (word >> 16 & kExponent) == kExponent;
  };
  each_piece(tile, 0, used, [&](const uint4& piece) {
    look(piece.x), look(piece.y), look(piece.z), look(piece.w);
  });
  return found;
}

// ---- Products.

/// Products with kCols columns by kAlongRows x kAlongColumns warpgroups: 64 rows of a warpgroup at
/// once, and side by side all columns that it has. Where results are does not depend on the majors.
template <class Element, int kCols, int kAlongRows, int kAlongColumns,
          GMMA::Major kMajorA = GMMA::Major::K, GMMA::Major kMajorB = GMMA::Major::K>
using Product = decltype(make_tiled_mma(
    GMMA::ss_op_selector<Element, Element, float,
                         Shape<Int<kRows>, Int<kCols / kAlongColumns>, _16>, kMajorA, kMajorB>(),
    Layout<Shape<Int<kAlongRows>, Int<kAlongColumns>, _1>>{}));

/// sums += a b, both from shared memory.
template <class Mma, class Sums, class A, class B>
__device__ __forceinline__ void multiply(const Mma&, Sums& sums, const A& a, const B& b) {
  const auto left = a.view();   // (M, K)
  const auto right = b.view();  // (N, K)
  using Groups = typename Mma::ThrLayoutVMNK;
  using Element = typename decltype(left)::value_type;
  Product<Element, decltype(size<0>(right))::value, size<1>(Groups{}), size<2>(Groups{}), A::kMajor,
          B::kMajor>
      mma;
  const int group = __shfl_sync(~0u, tiles::thread_here() / kWarpgroup, 0);  // for descriptors
  const auto mine = mma.get_slice(group * kWarpgroup);
  gemm(mma, true, mine.partition_fragment_A(left), mine.partition_fragment_B(right), sums);
  finish<0>(sums);
}

/// Bytes to the row that a lane names to stmatrix when a product goes to a tile: lanes 8 w + r name
/// row r of the 8 x 8 block of word w. The blocks have columns [16 i, 16 i + 16) of the
/// warpgroup's.
template <class Mma, class Tile>
__host__ __device__ constexpr uint32_t named_row(int thread, int m, int i) {
  using Groups = typename Mma::ThrLayoutVMNK;
  constexpr int kGroups = size<1>(Groups{}), kWide = Tile::kCols / size<2>(Groups{});
  static_assert(kWide % kSpan == 0);
  const int lane = thread % 32, group = thread / kWarpgroup;
  const int row =
      (m * kGroups + group % kGroups) * kRows + thread % kWarpgroup / 32 * 16 + lane % 16;
  const int span = group / kGroups * (kWide / kSpan) + i / 4;
  const int piece = lane / 16 ^ lane % 8 ^ i % 4 * 2;  // 16 bytes, swizzled by the row
  return static_cast<uint32_t>((span * Tile::kRows + row) * (kSpan * 2) + piece * 16);
}

/// tile = a product, rounded, for products behind the next barrier.
template <class Mma, class Sums, class Element, int kTileRows, int kCols>
__device__ void put(const Mma&, const Sums& sums, SharedTile<Element, kTileRows, kCols>& tile) {
  const uint32_t base = ptx::smem_address(tile.data);
  CUTE_UNROLL
  for (int m = 0; m < size<1>(sums); ++m) {
    CUTE_UNROLL
    for (int i = 0; i < size<0>(sums) / 8; ++i) {
      const auto word = [&](int w) {
        return pack<Element>(sums(8 * i + 2 * w, m, 0), sums(8 * i + 2 * w + 1, m, 0));
      };
      const uint32_t row =
          named_row<Mma, SharedTile<Element, kTileRows, kCols>>(tiles::thread_here(), m, i);
      ptx::store_matrices(base + row, word(0), word(1), word(2), word(3));
    }
  }
  ptx::fence_async_shared();
}

}  // namespace verbatim::cuda::sm90::tl
