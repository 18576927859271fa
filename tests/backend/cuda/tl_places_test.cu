// Where the backward translated from TL for Hopper has its tiles and products: no GPU runs here,
// CuTe's layouts are asked on the host.
#include <gtest/gtest.h>

#include <memory>

#include "backend/cuda/sm90/tl/backward.cuh"

namespace verbatim::cuda::sm90::tl {
namespace {

/// The element of a tile that TMA writes at (row, column): spans of 64 columns, 128-byte swizzled.
template <class Tile>
int place(int row, int column) {
  const int piece = column % kSpan / 8 ^ row % 8;
  return (column / kSpan * Tile::kRows + row) * kSpan + piece * 8 + column % 8;
}

template <int kTileRows, int kCols>
void check_tile() {
  using Tile = SharedTile<bfloat16_t, kTileRows, kCols>;
  const auto tile = std::make_unique<Tile>();
  const auto rows = tile->rows();
  const auto transposed = tile->transposed();
  for (int row = 0; row < kTileRows; ++row)
    for (int column = 0; column < kCols; ++column) {
      ASSERT_EQ(&rows(row, column) - tile->data, place<Tile>(row, column));
      ASSERT_EQ(&transposed(column, row), &rows(row, column));
    }
}

/// A kTileRows x kCols product of depth kDepth by kAlongRows x kAlongColumns warpgroups.
template <int kTileRows, int kCols, int kAlongRows, int kAlongColumns>
void check_product() {
  using Mma = Product<bfloat16_t, kCols, kAlongRows, kAlongColumns>;
  using Tile = SharedTile<bfloat16_t, kTileRows, kCols>;
  constexpr int kDepth = 128, kThreads = kWarpgroup * kAlongRows * kAlongColumns;
  std::vector<int> seen(kTileRows * kCols);
  for (int thread = 0; thread < kThreads; ++thread) {
    const auto mine = Mma{}.get_slice(thread);
    const auto at = mine.partition_C(make_identity_tensor(Shape<Int<kTileRows>, Int<kCols>>{}));
    ASSERT_EQ(size<1>(at) * tile_size<0>(Mma{}), kTileRows);
    ASSERT_EQ(size<2>(at), 1);
    for (int m = 0; m < size<1>(at); ++m)
      for (int e = 0; e < size<0>(at); ++e) {
        const int row = get<0>(at(e, m, 0)), column = get<1>(at(e, m, 0));
        ++seen[row * kCols + column];
        // What hide() takes for granted of a row's columns.
        ASSERT_EQ(column, get<1>(at(0, 0, 0)) + e / 4 * tiles::kApart<Mma> + e % 2);
        // stmatrix gives word w of lane l to row l / 4 of block w, pair l % 4.
        const int lane = thread % 32, namer = thread - lane + e % 8 / 2 * 8 + lane / 4;
        ASSERT_EQ((named_row<Mma, Tile>(namer, m, e / 8)) + lane % 4 * 4 + e % 2 * 2,
                  2u * place<Tile>(row, column));
      }
    // The blocks of the factors that the thread's warpgroup multiplies.
    const auto a = mine.partition_A(make_identity_tensor(Shape<Int<kTileRows>, Int<kDepth>>{}));
    const auto b = mine.partition_B(make_identity_tensor(Shape<Int<kCols>, Int<kDepth>>{}));
    const int group = thread / kWarpgroup;
    for (int k = 0; k < kDepth / 16; ++k) {
      for (int m = 0; m < size<1>(a); ++m) {
        ASSERT_EQ(get<0>(a(0, m, k)), (m * kAlongRows + group % kAlongRows) * kRows);
        ASSERT_EQ(get<1>(a(0, m, k)), 16 * k);
      }
      ASSERT_EQ(get<0>(b(0, 0, k)), group / kAlongRows * (kCols / kAlongColumns));
      ASSERT_EQ(get<1>(b(0, 0, k)), 16 * k);
    }
  }
  for (const int times : seen) ASSERT_EQ(times, 1);
}

TEST(TlPlaces, TilesAreAsTheyAreCopied) {
  check_tile<64, 128>();
  check_tile<128, 64>();
  check_tile<128, 128>();
}

TEST(TlPlaces, ProductsGoWhereTheyAreRead) {
  check_product<64, 128, 1, 2>();   // S and dQ at head dim 128
  check_product<128, 128, 2, 1>();  // dK there, and S at 64
  check_product<128, 64, 2, 1>();   // dQ and dK at 64
  check_product<128, 128, 1, 2>();
}

}  // namespace
}  // namespace verbatim::cuda::sm90::tl
