#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "random_mask.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

using test::Rng;

enum class Class { empty, partial, full };

struct Tile {
  Class of = Class::empty;
  std::set<int32_t> slices;  // that cut a partial tile
  bool operator==(const Tile&) const = default;
};

/// Edges position by position: a tile ends when it is full, where a document ends, and where
/// padding begins or ends.
std::vector<int64_t> expected_edges(int64_t length, int64_t tile,
                                    const std::vector<int64_t>& breaks) {
  std::vector<int64_t> edges{0};
  for (int64_t x = 1; x <= length; ++x) {
    if (x == length || x - edges.back() == tile ||
        std::find(breaks.begin(), breaks.end(), x) != breaks.end()) {
      edges.push_back(x);
    }
  }
  return edges;
}

Tile classify(const HeadMask& head, int64_t q0, int64_t q1, int64_t k0, int64_t k1) {
  Tile tile;
  int64_t visible = 0;
  for (int64_t q = q0; q < q1; ++q) {
    for (int64_t k = k0; k < k1; ++k) {
      for (size_t i = 0; i < head.slices.size(); ++i) {
        if (!head.slices[i].contains(q, k)) continue;
        ++visible;
        tile.slices.insert(static_cast<int32_t>(i));
      }
    }
  }
  if (visible > 0) tile.of = Class::partial;
  if (visible == (q1 - q0) * (k1 - k0)) tile = {Class::full, {}};
  return tile;
}

/// Runs of one line as tiles; fails when they are out of order, overlap or could be merged.
std::vector<Tile> expand(const TileMap& map, std::span<const TileRun> runs, size_t tiles) {
  std::vector<Tile> line(tiles);
  const TileRun* previous = nullptr;
  for (const TileRun& run : runs) {
    EXPECT_LT(run.first, run.last);
    Tile tile{run.full() ? Class::full : Class::partial, {}};
    for (int32_t i = 0; i < run.slice_count; ++i) {
      tile.slices.insert(map.slice_ids.at(run.slice_begin + i));
    }
    EXPECT_EQ(std::ssize(tile.slices), run.slice_count);
    if (previous) {
      EXPECT_LE(previous->last, run.first);
      EXPECT_FALSE(previous->last == run.first && line[run.first - 1] == tile) << "not maximal";
    }
    for (int32_t t = run.first; t < run.last; ++t) line.at(t) = tile;
    previous = &run;
  }
  return line;
}

void expect_exact(const HeadMask& head, TileShape shape) {
  const TileMap map(head, shape);
  std::vector<int64_t> q_breaks = head.q_breaks, k_breaks = head.k_breaks;
  for (const Sequence& s : sequences(head)) {
    q_breaks.insert(q_breaks.end(), {s.q.begin, s.q.end, s.core.begin, s.core.end});
    k_breaks.insert(k_breaks.end(), {s.k.begin, s.k.end});
  }
  ASSERT_EQ(map.q_edges, expected_edges(head.q_len, shape.q, q_breaks));
  ASSERT_EQ(map.kv_edges, expected_edges(head.kv_len, shape.kv, k_breaks));
  ASSERT_EQ(map.slices(), head.slices);
  std::vector<std::vector<Tile>> rows;
  for (int32_t t = 0; t < map.q_tiles(); ++t) {
    rows.push_back(expand(map, map.row(t), map.kv_tiles()));
  }
  int64_t count = 0, full = 0;
  for (int32_t c = 0; c < map.kv_tiles(); ++c) {
    const std::vector<Tile> column = expand(map, map.column(c), map.q_tiles());
    for (int32_t r = 0; r < map.q_tiles(); ++r) {
      const Tile tile =
          classify(head, map.q_edges[r], map.q_edges[r + 1], map.kv_edges[c], map.kv_edges[c + 1]);
      ASSERT_EQ(column[r], tile) << "column " << c << " tile " << r;
      ASSERT_EQ(rows[r][c], tile) << "row " << r << " tile " << c;
      count += tile.of != Class::empty;
      full += tile.of == Class::full;
    }
  }
  ASSERT_EQ(map.count(), count);
  ASSERT_EQ(map.count_full(), full);
}

TEST(TileMap, EqualsBruteForceOnRandomMasks) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Rng rng(seed);
    std::string text;
    const HeadMask head = test::random_head_mask(rng, 70, text);
    const TileShape shape{test::uniform(rng, 1, 20), test::uniform(rng, 1, 20)};
    SCOPED_TRACE(fmt::format("seed {}: {}, tiles {}x{}", seed, text, shape.q, shape.kv));
    expect_exact(head, shape);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(TileMap, EqualsBruteForceOnRandomBlocks) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Rng rng(seed);
    const auto size = [&](int64_t least, int64_t most) { return test::uniform(rng, least, most); };
    const double density = static_cast<double>(size(0, 10)) / 10;
    const int64_t q_len = size(1, 60), kv_len = size(1, 60);
    const int64_t block_q = size(1, 16), block_k = size(1, 16);
    const TileShape shape{size(1, 20), size(1, 20)};
    const Mask mask =
        masks::uniform_block_sparse(q_len, kv_len, block_q, block_k, density, seed, 2);
    for (const HeadMask& head : mask.variants()) expect_exact(head, shape);
    ASSERT_FALSE(HasFatalFailure() || HasNonfatalFailure()) << "seed " << seed;
  }
}

TEST(TileMap, CausalHasTwoRunsPerColumn) {
  const TileMap map(masks::causal(256, 256).head(0, 0), {64, 128});
  EXPECT_EQ(map.count(), 6);
  EXPECT_EQ(map.count_full(), 2);
  ASSERT_EQ(map.column(0).size(), 2u);
  EXPECT_FALSE(map.column(0)[0].full());
  EXPECT_EQ(map.column(0)[0].last, 2);
  EXPECT_TRUE(map.column(0)[1].full());
  EXPECT_EQ(map.column(0)[1].last, 4);
  ASSERT_EQ(map.column(1).size(), 1u);
  EXPECT_EQ(map.column(1)[0].first, 2);
}

TEST(TileMap, RefusesSlicesOutsideThePlane) {
  for (const Slice& s :
       {Slice{0, 99, 0, 8}, Slice{0, 8, 0, 99}, Slice{-1, 8, 0, 8}, Slice{0, 8, -1, 8}})
    EXPECT_THROW(TileMap(HeadMask{8, 8, {s}, {}, {}}, {4, 4}), Error);
}

TEST(TileMap, TilesRestartAtDocuments) {
  const int64_t lengths[] = {5, 0, 3, 9};
  const TileMap map(masks::full_document(lengths).head(0, 0), {4, 8});
  EXPECT_EQ(map.q_edges, (std::vector<int64_t>{0, 4, 5, 8, 12, 16, 17}));
  EXPECT_EQ(map.kv_edges, (std::vector<int64_t>{0, 5, 8, 16, 17}));
  EXPECT_EQ(map.count(), map.count_full());
}

TEST(TileMap, SlicesThatFillATileTogetherMakeItFull) {
  const HeadMask head{
      8, 8, {{0, 8, 0, 3}, {0, 8, 3, 8, Slice::kNoLow, 0}, {0, 8, 3, 8, 1}}, {}, {}};
  head.validate();
  const TileMap map(head, {4, 4});
  EXPECT_EQ(map.count_full(), 4);
  EXPECT_EQ(map.columns.size(), 2u);
}

TEST(TileMap, StaysSmallForOneMillionTokens) {
  const int64_t len = int64_t{1} << 20;
  const TileMap map(masks::causal(len, len).head(0, 0), {64, 128});
  EXPECT_EQ(map.kv_tiles(), 8192);
  EXPECT_EQ(map.columns.size(), 2u * 8192 - 1);
  EXPECT_EQ(map.slice_ids.size(), 1u);
  EXPECT_EQ(map.count(), int64_t{8192} * 8193);
}

// Blocks of half a tile cut most visits, those of whole tiles none; the edges of bands do not
// count.
TEST(TileMap, KnowsWhatBlocksLeaveOfIt) {
  const auto shown = [](const Mask& mask, TileShape shape) {
    return TileMap(mask.head(0, 0), shape).shown_by_blocks();
  };
  const auto blocks = [](int64_t size, double share) {
    return masks::uniform_block_sparse(4096, 4096, size, size, share, 1, 1);
  };
  for (const TileShape shape : {TileShape{128, 128}, {64, 128}}) {
    // Of a visited tile's blocks of 64 at least one is seen.
    const double blocks_of_tile = shape.q / 64.0 * shape.kv / 64.0;
    for (const double share : {0.2, 0.5, 0.8}) {
      const double expected = share / (1 - std::pow(1 - share, blocks_of_tile));
      EXPECT_NEAR(shown(blocks(64, share), shape), expected, 0.03) << share;
    }
    EXPECT_GT(shown(blocks(32, 0.4), shape), 0.9);  // cut, but few halves can be left out
    EXPECT_EQ(shown(blocks(64, 0.97), shape), 1);
    EXPECT_EQ(shown(blocks(128, 0.2), shape), 1);
    EXPECT_EQ(shown(masks::causal(300, 300), shape), 1);
    EXPECT_EQ(shown(masks::causal_sliding_window(4096, 4096, 100), shape), 1);
    EXPECT_EQ(shown(masks::full(4096, 4096), shape), 1);
  }
}

TEST(TileMap, EmptyPlanesHaveNoTiles) {
  for (const auto& [q_len, kv_len] : {std::pair{0, 0}, {0, 9}, {9, 0}}) {
    const TileMap map(masks::full(q_len, kv_len).head(0, 0), {4, 4});
    EXPECT_EQ(map.q_tiles(), (q_len + 3) / 4);
    EXPECT_EQ(map.kv_tiles(), (kv_len + 3) / 4);
    EXPECT_EQ(map.count(), 0);
  }
}

TEST(TileMap, RefusesEmptyTiles) {
  EXPECT_THROW(TileMap(masks::full(4, 4).head(0, 0), {0, 4}), Error);
  EXPECT_THROW(TileMap(masks::full(4, 4), 0, {0, 4}), Error);
  EXPECT_THROW(TileMap(masks::full(4, 4).head(0, 0), {4, -1}), Error);
}

TEST(TileMap, SharesTheSlicesOfAMask) {
  const std::vector<int64_t> lengths{3, 8};
  std::optional<Mask> mask = masks::causal(8, 8).with_key_lengths(lengths);
  const TileMap alone(mask->variants()[1], {4, 4});
  const TileMap shared(*mask, 1, {4, 4});
  EXPECT_EQ(&shared.slices(), &mask->variants()[1].slices);
  EXPECT_NE(&alone.slices(), &shared.slices());
  mask.reset();
  EXPECT_EQ(shared.slices(), alone.slices());
  EXPECT_EQ(shared.sequences, alone.sequences);
  EXPECT_EQ(shared.count_full(), alone.count_full());
  EXPECT_EQ(shared.bytes(), alone.bytes());
}

}  // namespace
}  // namespace verbatim
