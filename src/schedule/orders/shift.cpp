// Rotated sweeps: every chain starts at another row, so that no two add to one row at once.
#include <algorithm>

#include "contract/rules.h"
#include "schedule/orders/timed.h"

namespace verbatim::order {
namespace {

/// All rows from `start` to the end, then from the beginning to `start`.
std::vector<Sweep> rotated(int32_t rows, int32_t start) { return {{start, rows}, {0, start}}; }

/// From the first to the last row of the core that sees a KV tile.
TileRange extent(const TileMap& tiles, TileRange core, int32_t kv_tile) {
  TileRange found{core.last, core.first};
  for (const TileRun& run : tiles.column(kv_tile)) {
    if (run.last <= core.first || run.first >= core.last) continue;
    found.first = std::min(found.first, std::max(run.first, core.first));
    found.last = std::min(run.last, core.last);
  }
  return found.first < found.last ? found : TileRange{core.first, core.first};
}

}  // namespace

HeadOrder shift(const Tiles& tiles, int32_t group, Parts parts) {
  const TileRange core = tiles->core_q_tiles();
  const int64_t rows = core.count(), columns = tiles->kv_tiles();
  const int64_t together = contract::rotating_tiles(columns);
  std::vector<std::vector<Walk>> tasks;
  for (int64_t j = 0; j < columns; ++j) {
    const auto start = core.first + static_cast<int32_t>(j % together * rows / together);
    tasks.push_back({{static_cast<int32_t>(j), static_cast<int32_t>(j / together),
                      rotated(tiles->q_tiles(), start)}});
  }
  return timed(tiles, group, parts, tasks);
}

HeadOrder chunked_shift(const Tiles& tiles, int32_t group, Parts parts) {
  const TileRange core = tiles->core_q_tiles();
  std::vector<std::vector<Walk>> tasks;
  for (int32_t j = 0; j < tiles->kv_tiles(); ++j) {
    const TileRange rows = extent(*tiles, core, j);
    const int32_t start =
        rows.first + static_cast<int32_t>(int64_t{rows.count()} * (j % kChunk) / kChunk);
    tasks.push_back({{j, j / kChunk, rotated(tiles->q_tiles(), start)}});
  }
  return timed(tiles, group, parts, tasks);
}

}  // namespace verbatim::order
