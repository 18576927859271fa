// Where a forward of e4m3 translated from TL for Hopper has V turned and P as a factor: no GPU runs
// here, ldmatrix, prmt and stmatrix are played on the host.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <random>

#include "backend/cuda/sm90/tl/tiles_e4m3.cuh"

namespace verbatim::cuda::sm90::tl {
namespace {

using Bytes = uint8_t*;
constexpr int kLanes = 32;

template <class Tile>
void check_tile() {
  const auto tile = std::make_unique<Tile>();
  const auto rows = tile->rows();
  for (int row = 0; row < Tile::kRows; ++row)
    for (int column = 0; column < Tile::kCols; ++column)
      ASSERT_EQ(&rows(row, column) - tile->data, Tile::place(row, column));
}

TEST(TlPlacesOfE4m3, TilesAreAsTheyAreCopied) {
  check_tile<SharedTile<float_e4m3_t, 128, 128>>();
  check_tile<SharedTile<float_e4m3_t, 192, 64>>();
  // The 16-byte pieces of 128 bytes as a swizzle of 128, and of 64, bytes places them.
  EXPECT_EQ((SharedTile<float_e4m3_t, 8, 128>::place(3, 32)), 3 * 128 + (2 ^ 3) * 16);
  EXPECT_EQ((SharedTile<float_e4m3_t, 8, 64>::place(3, 32)), 3 * 64 + (2 ^ 1) * 16);
}

/// Of one 8 x 8 matrix of pairs of bytes, whose rows lie at `rows`.
using Rows = std::array<Bytes, 8>;

/// The word that ldmatrix.trans gives a lane: of column lane / 4, rows 2 (lane % 4) and the next.
uint32_t transposed(const Rows& rows, int lane) {
  uint16_t pairs[2];
  for (int i = 0; i < 2; ++i) std::memcpy(&pairs[i], rows[lane % 4 * 2 + i] + lane / 4 * 2, 2);
  return pairs[0] | uint32_t{pairs[1]} << 16;
}
/// What stmatrix does with a lane's word.
void put(const Rows& rows, int lane, uint32_t word) {
  std::memcpy(rows[lane / 4] + lane % 4 * 4, &word, 4);
}
uint32_t permuted(uint32_t low, uint32_t high, uint32_t selected) {
  const uint64_t all = uint64_t{high} << 32 | low;
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i)
    word |= static_cast<uint32_t>(all >> (selected >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return word;
}

/// turn(), lane by lane: those of eight lanes are the addresses of a matrix's rows.
template <class Tile, class Turned>
void play(Tile& tile, Turned& turned) {
  for (int k = 0; k < Tile::kRows / 32; ++k)
    for (int n = 0; n < Tile::kCols / 16; ++n) {
      std::array<Rows, 4> from, to;
      for (int lane = 0; lane < kLanes; ++lane) {
        from[lane / 8][lane % 8] = reinterpret_cast<Bytes>(tile.data) + read_at<Tile>(lane, k, n);
        to[lane / 8][lane % 8] =
            reinterpret_cast<Bytes>(turned.data) + written_at<Turned>(lane, k, n);
      }
      for (int lane = 0; lane < kLanes; ++lane) {
        uint32_t words[4];
        for (int i = 0; i < 4; ++i) words[i] = transposed(from[i], lane);
        turn_words(words, permuted);
        for (int i = 0; i < 4; ++i) put(to[i], lane, words[i]);
      }
    }
}

template <int kKeys, int kDim>
void check_turned() {
  using Tile = SharedTile<float_e4m3_t, kKeys, kDim>;
  using Turned = SharedTile<float_e4m3_t, kDim, kKeys>;
  const auto tile = std::make_unique<Tile>();
  const auto turned = std::make_unique<Turned>();
  std::mt19937 random(1);
  const auto bytes = reinterpret_cast<Bytes>(tile->data);
  for (int i = 0; i < kKeys * kDim; ++i) bytes[i] = static_cast<uint8_t>(random());
  play(*tile, *turned);
  const auto v = tile->rows();
  const auto factor = turned->rows();  // (N, K), as wgmma reads it
  for (int n = 0; n < kDim; ++n)
    for (int p = 0; p < kKeys; ++p)
      ASSERT_EQ(factor(n, p).raw(), v(turned_key(p), turned_column(n)).raw()) << n << " " << p;
}

TEST(TlPlacesOfE4m3, VIsTurned) {
  check_turned<128, 128>();
  check_turned<128, 64>();
  check_turned<64, 128>();
  check_turned<64, 64>();
}

TEST(TlPlacesOfE4m3, PlacesHoldEveryKeyAndColumnOnce) {
  std::vector<int> keys(128), columns(128);
  for (int i = 0; i < 128; ++i) ++keys[turned_key(i)], ++columns[turned_column(i)];
  EXPECT_EQ(keys, std::vector<int>(128, 1));
  EXPECT_EQ(columns, std::vector<int>(128, 1));
}

/// P needs no lane but its own: byte i of word w is the score of the key that V has in that place.
template <int kKeys>
void check_factor() {
  using Scores = FromShared<float_e4m3_t, kKeys, GMMA::Major::K>;
  using Result = FromRegisters<float_e4m3_t, 64, GMMA::Major::K>;
  for (int thread = 0; thread < kWarpgroup; ++thread) {
    const auto identity = make_identity_tensor(Shape<Int<kRows>, Int<kKeys>>{});
    const auto scores = Scores{}.get_slice(thread).partition_C(identity);
    const auto factor = Result{}.get_slice(thread).partition_A(identity);
    ASSERT_EQ(size(scores), size(factor));
    for (int i = 0; i < size(factor); ++i) {
      const int score = score_of(i / 4, i % 4);
      ASSERT_EQ(get<0>(scores(score)), get<0>(factor(i))) << thread << " " << i;
      ASSERT_EQ(get<1>(scores(score)), turned_key(get<1>(factor(i)))) << thread << " " << i;
    }
  }
}

TEST(TlPlacesOfE4m3, PStaysInItsRegisters) {
  check_factor<128>();
  check_factor<64>();
}

/// write_rows(): of each 16 columns a thread has four neighbours.
TEST(TlPlacesOfE4m3, ResultsAreFourNeighbours) {
  using Result = FromRegisters<float_e4m3_t, 128, GMMA::Major::K>;
  for (int thread = 0; thread < kWarpgroup; ++thread) {
    const auto at =
        Result{}.get_slice(thread).partition_C(make_identity_tensor(Shape<Int<kRows>, _128>{}));
    for (int i = 0; i < size(at); ++i) {
      const int block = i / 8 * 2, r = i / 2 % 2, e = i % 2, odd = i / 4 % 2;
      ASSERT_EQ(turned_column(get<1>(at(i))), 8 * block + thread % 4 * 4 + 2 * e + odd);
      ASSERT_EQ(get<0>(at(i)), thread / 32 * 16 + thread % 32 / 4 + 8 * r);
    }
  }
}

}  // namespace
}  // namespace verbatim::cuda::sm90::tl
