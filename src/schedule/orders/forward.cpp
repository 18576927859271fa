// Orders of the forward: how KV tiles enter the online softmax of a query tile.
#include <algorithm>

#include "schedule/orders/orders.h"

namespace verbatim::order {
namespace {

enum class Columns { rightwards, leftwards };

// The visits [begin, end) of one row, counted over its non-empty tiles in walking direction.
void visit_row(PackedRuns& runs, std::span<const TileRun> row, Columns columns, int32_t begin,
               int32_t end) {
  const bool left = columns == Columns::leftwards;
  int32_t seen = 0;
  for (size_t k = 0; k < row.size() && seen < end; ++k) {
    const TileRun& tiles = left ? row[row.size() - 1 - k] : row[k];
    const int32_t size = tiles.last - tiles.first;
    const int32_t from = std::max(begin - seen, 0), to = std::min(end - seen, size);
    seen += size;
    if (from >= to) continue;
    runs.push_back({.first = left ? tiles.last - 1 - from : tiles.first + from,
                    .count = to - from,
                    .step = left ? -1 : 1,
                    .slice_begin = tiles.full() ? 0 : tiles.slice_begin,
                    .slice_count = tiles.slice_count});
  }
}

HeadOrder forward(const Tiles& tiles, int32_t group, Parts parts, Columns columns) {
  HeadOrder order;
  order.pass = Pass::forward;
  order.tiles = tiles;
  order.group = group;
  // Causal rows grow downwards: the last rows are issued first, so that no long one ends alone. All
  // query heads do the same, so the runs of one are kept.
  PackedRuns runs;
  runs.reserve(tiles->rows.size());
  std::vector<size_t> ends{0};     // of each piece in `runs`, behind a 0
  std::vector<int32_t> pieces_of;  // each row, from the last on
  for (int32_t q_tile = tiles->q_tiles() - 1; q_tile >= 0; --q_tile) {
    const auto row = tiles->row(q_tile);
    const auto visits = static_cast<int32_t>(count_tiles(row));
    const int32_t piece = parts.count != kWalked.count ? kSplit : std::max(visits, 1);
    const int32_t pieces = std::max((visits + piece - 1) / piece, 1);
    for (int32_t p = 0; p < pieces; ++p) {
      visit_row(runs, row, columns, p * piece, std::min((p + 1) * piece, visits));
      ends.push_back(runs.size());
    }
    pieces_of.push_back(pieces);
  }
  order.runs = Runs::of_repeats(std::move(runs));
  order.chains.reserve((ends.size() - 1) * static_cast<size_t>(group));
  order.tasks.reserve(order.chains.capacity());
  auto end = ends.begin();
  for (int32_t q_tile = tiles->q_tiles() - 1; q_tile >= 0; --q_tile) {
    const int32_t pieces = pieces_of[tiles->q_tiles() - 1 - q_tile];
    for (int32_t q_head = 0; q_head < group; ++q_head) {
      for (int32_t p = 0; p < pieces; ++p) {
        const auto begin = static_cast<int32_t>(order.runs.size());
        order.runs.repeat(end[p], end[p + 1], q_head, 1);
        const auto chains = static_cast<int32_t>(order.chains.size());
        order.chains.push_back(
            {q_tile, begin, static_cast<int32_t>(order.runs.size()), q_head, p, pieces});
        order.tasks.push_back({chains, chains + 1});
      }
    }
    end += pieces;
  }
  return order;
}

}  // namespace

HeadOrder forward_ascending(const Tiles& tiles, int32_t group, Parts parts) {
  return forward(tiles, group, parts, Columns::rightwards);
}

HeadOrder forward_descending(const Tiles& tiles, int32_t group, Parts parts) {
  return forward(tiles, group, parts, Columns::leftwards);
}

}  // namespace verbatim::order
