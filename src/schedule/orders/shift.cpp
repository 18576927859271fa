// Rotated sweeps: every chain starts at another row, so that no two add to one row at once.
#include "schedule/orders/timed.h"

namespace verbatim::order {
namespace {

/// Rows [first, last) from `start` to the end, then from the beginning to `start`.
std::vector<Sweep> rotated(int32_t first, int32_t last, int32_t start) {
  return {{start, last}, {first, start}};
}

struct Extent {
  int32_t first, last;
};
Extent extent(const TileMap& tiles, int32_t kv_tile) {
  const auto column = tiles.column(kv_tile);
  return column.empty() ? Extent{0, 0} : Extent{column.front().first, column.back().last};
}

}  // namespace

int64_t rotating_tiles(int64_t kv_tiles) {
  constexpr int64_t kMost = kWave / 2, kLeast = kWave / 4;
  if (kv_tiles <= kMost) return kv_tiles;
  for (int64_t chunks = (kv_tiles + kMost - 1) / kMost; chunks * kLeast <= kv_tiles; ++chunks) {
    const int64_t tiles = (kv_tiles + chunks - 1) / chunks;
    if (8 * (kWave / tiles) * tiles >= 7 * kWave) return tiles;
  }
  return kMost;
}

HeadOrder shift(const Tiles& tiles, int32_t group, Parts parts) {
  const int64_t rows = tiles->q_tiles(), columns = tiles->kv_tiles();
  const int64_t together = rotating_tiles(columns);
  std::vector<std::vector<Walk>> tasks;
  for (int64_t j = 0; j < columns; ++j) {
    const auto start = static_cast<int32_t>(j % together * rows / together);
    tasks.push_back({{static_cast<int32_t>(j), static_cast<int32_t>(j / together),
                      rotated(0, static_cast<int32_t>(rows), start)}});
  }
  return timed(tiles, group, parts, tasks);
}

HeadOrder chunked_shift(const Tiles& tiles, int32_t group, Parts parts) {
  std::vector<std::vector<Walk>> tasks;
  for (int32_t j = 0; j < tiles->kv_tiles(); ++j) {
    const auto [first, last] = extent(*tiles, j);
    const int32_t start =
        first + static_cast<int32_t>(int64_t{last - first} * (j % kChunk) / kChunk);
    tasks.push_back({{j, j / kChunk, rotated(first, last, start)}});
  }
  return timed(tiles, group, parts, tasks);
}

}  // namespace verbatim::order
