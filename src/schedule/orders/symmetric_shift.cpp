// DASH figure 7: KV tiles i and n-1-i in one task, so that causal tasks are equally long.
#include <algorithm>

#include "schedule/orders/timed.h"

namespace verbatim::order {
namespace {

/// Pairs the KV tiles [begin, end). The left tile of a pair first walks the rows that all left
/// tiles share, rotated by its place, then those above; the right tile walks from the last row up.
/// Left tiles come before right ones in every row.
void add_pairs(std::vector<std::vector<Walk>>& tasks, const TileMap& tiles, int32_t begin,
               int32_t end, int32_t phase) {
  const TileRange core = tiles.core_q_tiles();
  const int64_t rows = core.count(), columns = tiles.kv_tiles();
  const int32_t half = (end - begin) / 2, last = tiles.q_tiles();
  const auto row_of = [&](int64_t kv_tile) {  // of the core
    return static_cast<int32_t>(kv_tile * rows / columns);
  };
  const int32_t shared = core.first + (half > 0 ? row_of(begin + half - 1) : 0);
  for (int32_t i = 0; i < half; ++i) {
    const int32_t left = begin + i, right = end - 1 - i;
    const int32_t start = std::min(shared + row_of(i), core.last);
    tasks.push_back({{left, phase, {{start, last}, {shared, start}, {0, shared}}},
                     {right, phase + 1, {{0, last, Rows::down}}}});
  }
  if (begin + 2 * half < end) tasks.push_back({{begin + half, phase + 1, {{0, last, Rows::down}}}});
}

}  // namespace

HeadOrder symmetric_shift(const Tiles& tiles, int32_t group, Parts parts) {
  std::vector<std::vector<Walk>> tasks;
  add_pairs(tasks, *tiles, 0, tiles->kv_tiles(), 0);
  return timed(tiles, group, parts, tasks);
}

HeadOrder chunked_symmetric_shift(const Tiles& tiles, int32_t group, Parts parts) {
  std::vector<std::vector<Walk>> tasks;
  for (int32_t begin = 0; begin < tiles->kv_tiles(); begin += kChunk)
    add_pairs(tasks, *tiles, begin, std::min(begin + kChunk, tiles->kv_tiles()),
              begin / kChunk * 2);
  return timed(tiles, group, parts, tasks);
}

}  // namespace verbatim::order
