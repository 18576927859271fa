// Orders in which all dQ rows share one permutation of the KV tiles.
#include <algorithm>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "contract/rules.h"
#include "plan/row_counters.h"
#include "schedule/orders/orders.h"

namespace verbatim::order {
namespace {

/// Query tiles from `first` on, up to the next chunk.
struct RowChunk {
  int32_t first;
  int64_t number;  // from 0, or kBesideCore
};
constexpr int64_t kBesideCore = -1;

Run upwards(const Stair& stair, const TileRun& tiles) {
  return {.first = stair.begin,
          .count = stair.size(),
          .addend = stair.value,
          .addend_step = stair.step,
          .slice_begin = tiles.full() ? 0 : tiles.slice_begin,
          .slice_count = tiles.slice_count,
          .addend_every = stair.every};
}

// The same visits from the last row to the first: a cut last plateau comes first, on its own.
void add_down(PackedRuns& runs, const Stair& stair, const TileRun& tiles) {
  const int32_t cut = stair.step == 0 ? 0 : stair.size() % stair.every;
  if (cut != 0) add_down(runs, {stair.end - cut, stair.end, stair.at(stair.end - 1), 0, 1}, tiles);
  Run run = upwards({stair.begin, stair.end - cut, stair.value, stair.step, stair.every}, tiles);
  if (run.addend_step != 0) run.addend = run.addend_of(run.count - 1);
  run.addend_step = -run.addend_step;
  run.first += run.count - 1;
  run.step = -1;
  runs.push_back(run);
}

/// Calls f(number, tiles) for what lies in one chunk of one run of a column, as `rows` goes.
template <class F>
void for_each_in_chunks(std::span<const TileRun> column, Rows rows,
                        std::span<const RowChunk> chunks, F&& f) {
  const bool whole = chunks.size() == 2;  // one, and the end
  for (size_t k = 0; k < column.size(); ++k) {
    TileRun left = rows == Rows::up ? column[k] : column[column.size() - 1 - k];
    if (whole) {
      f(chunks.front().number, left);
      continue;
    }
    while (left.first < left.last) {
      TileRun tiles = left;
      const auto end = std::ranges::upper_bound(
          chunks, rows == Rows::up ? left.first : left.last - 1, {}, &RowChunk::first);
      const RowChunk& chunk = *std::prev(end);
      if (rows == Rows::up) {
        left.first = tiles.last = std::min(left.last, end->first);
      } else {
        left.last = tiles.first = std::max(left.first, chunk.first);
      }
      f(chunk.number, tiles);
    }
  }
}

// Appends the visits of a run of a column by query head 0 and counts them; `stairs` is scratch.
void visit_tiles(PackedRuns& runs, const TileRun& tiles, Rows rows, RowCounters& counters,
                 std::vector<Stair>& stairs) {
  stairs.clear();
  counters.take(tiles.first, tiles.last, stairs);
  if (rows == Rows::up) {
    for (const Stair& stair : stairs) runs.push_back(upwards(stair, tiles));
  } else {
    for (auto stair = stairs.rbegin(); stair != stairs.rend(); ++stair)
      add_down(runs, *stair, tiles);
  }
}

/// Visits of a column by query head 0 in one chunk of rows.
struct ColumnChunk {
  int64_t number;             // RowChunk::number
  size_t column, place;       // among the chunks of the column
  size_t run_begin, run_end;  // in PackedRuns
};

/// Visits by the rows of the core.
int64_t core_visits(std::span<const TileRun> column, TileRange core) {
  int64_t visits = 0;
  for (const TileRun& run : column)
    visits += std::max(std::min(run.last, core.last) - std::max(run.first, core.first), 0);
  return visits;
}

/// Chunks of `rows` positions of a sequence (0: one has all), then the end. They count from the
/// first row of the core, and what is beside it is in none of them: padding moves nothing.
std::vector<RowChunk> row_chunks(const TileMap& tiles, int32_t rows) {
  if (rows == 0) return {{0, 0}, {tiles.q_tiles(), kBesideCore}};
  std::vector<RowChunk> chunks;
  const TileRange core = tiles.core_q_tiles();
  for (int32_t tile = 0; tile < tiles.q_tiles(); ++tile) {
    const int64_t at = tiles.q_edges[tile] - tiles.q_edges[core.first];
    const int64_t number = tile < core.first || tile >= core.last ? kBesideCore : at / rows;
    if (chunks.empty() || chunks.back().number != number) chunks.push_back({tile, number});
  }
  chunks.push_back({tiles.q_tiles(), kBesideCore});
  return chunks;
}

/// 0, 1, ..., tiles.kv_tiles() - 1.
std::vector<int32_t> left_to_right(const TileMap& tiles) {
  std::vector<int32_t> kv_tiles(tiles.kv_tiles());
  std::iota(kv_tiles.begin(), kv_tiles.end(), 0);
  return kv_tiles;
}

/// Tasks and addends in the sequence of `kv_tiles`.
HeadOrder kv_major(const Tiles& tiles, int32_t group, Parts parts, Rows rows,
                   std::span<const int32_t> kv_tiles) {
  HeadOrder order;
  order.tiles = tiles;
  order.group = group;
  // The group shares mask and numbering, so one query head's runs do for all.
  RowCounters counters(tiles->q_tiles());
  PackedRuns runs;
  runs.reserve(tiles->columns.size());
  std::vector<ColumnChunk> chunks;
  std::vector<int32_t> chunks_of;  // by column
  std::vector<int64_t> visits;     // of each column, by rows of the core
  const std::vector<RowChunk> in_rows = row_chunks(*tiles, parts.rows);
  if (parts.rows > 0)
    for (size_t c = 0; c + 1 < in_rows.size(); ++c) order.row_chunks.push_back(in_rows[c].first);
  const TileRange core = tiles->core_q_tiles();
  std::vector<Stair> stairs;
  for (const int32_t kv_tile : kv_tiles) {
    const size_t column = chunks_of.size(), first = chunks.size();
    for_each_in_chunks(
        tiles->column(kv_tile), rows, in_rows, [&](int64_t number, const TileRun& run) {
          // Rows beside the core make no sum of their own: they go with those before or after.
          const bool fresh = chunks.size() == first;
          if (!fresh && chunks.back().number == kBesideCore) chunks.back().number = number;
          if (fresh || (number != kBesideCore && number != chunks.back().number))
            chunks.push_back({number, column, chunks.size() - first, runs.size(), 0});
          visit_tiles(runs, run, rows, counters, stairs);
          chunks.back().run_end = runs.size();
        });
    if (chunks.size() == first) chunks.push_back({0, column, 0, runs.size(), runs.size()});
    chunks_of.push_back(static_cast<int32_t>(chunks.size() - first));
    visits.push_back(core_visits(tiles->column(kv_tile), core));
  }
  order.row_addends = counters.values();
  const int64_t most = visits.empty() ? 0 : std::ranges::max(visits);
  order.runs = Runs::of_repeats(std::move(runs));

  const auto add_chain = [&](const ColumnChunk& chunk, int32_t part, int32_t shared) {
    Chain chain{.tile = kv_tiles[chunk.column],
                .run_begin = static_cast<int32_t>(order.runs.size()),
                .addend = static_cast<int32_t>(chunk.place) * shared + part,
                .addends = chunks_of[chunk.column] * shared};
    const int32_t head = first_head(group, part, shared);
    const int32_t heads = first_head(group, part + 1, shared) - head;
    order.runs.repeat(chunk.run_begin, chunk.run_end, head, heads);
    chain.run_end = static_cast<int32_t>(order.runs.size());
    const auto chains = static_cast<int32_t>(order.chains.size());
    order.chains.push_back(chain);
    order.tasks.push_back({chains, chains + 1});
  };
  if (parts.even) {
    // A chain of many query heads waits for all parts of the KV tiles before: these are issued
    // first.
    for (const ColumnChunk& chunk : chunks) {
      const int32_t shared = parts.of(group, visits[chunk.column], most);
      for (int32_t part = 0; part < shared; ++part) add_chain(chunk, part, shared);
    }
    return order;
  }
  // One chunk and part after another, so that chains that share a tile are far apart in time.
  const auto number = [&](const ColumnChunk& chunk) {
    return rows == Rows::up ? chunk.number : -chunk.number;
  };
  std::ranges::stable_sort(chunks, {}, number);
  const int32_t shared = parts.of(group, most, most);
  for (auto begin = chunks.begin(), end = begin; begin != chunks.end(); begin = end) {
    end = std::ranges::upper_bound(begin, chunks.end(), number(*begin), {}, number);
    for (int32_t part = 0; part < shared; ++part)
      for (auto chunk = begin; chunk != end; ++chunk) add_chain(*chunk, part, shared);
  }
  return order;
}

}  // namespace

int32_t Parts::of(int32_t group, int64_t visits, int64_t most) const {
  const int32_t parts = count == 0 || count > group ? group : count;
  if (!even) return parts;
  return static_cast<int32_t>(contract::even_parts(group, parts, visits, most));
}

HeadOrder ascending(const Tiles& tiles, int32_t group, Parts parts) {
  return kv_major(tiles, group, parts, Rows::up, left_to_right(*tiles));
}

HeadOrder descending(const Tiles& tiles, int32_t group, Parts parts) {
  return kv_major(tiles, group, parts, Rows::down, left_to_right(*tiles));
}

HeadOrder right_to_left(const Tiles& tiles, int32_t group, Parts parts) {
  auto kv_tiles = left_to_right(*tiles);
  std::reverse(kv_tiles.begin(), kv_tiles.end());
  return kv_major(tiles, group, parts, Rows::up, kv_tiles);
}

HeadOrder chunked_descending(const Tiles& tiles, int32_t group, Parts parts) {
  auto kv_tiles = left_to_right(*tiles);
  for (auto chunk = kv_tiles.begin(); chunk != kv_tiles.end();) {
    const auto end = chunk + std::min<ptrdiff_t>(kChunk, kv_tiles.end() - chunk);
    std::reverse(chunk, end);
    chunk = end;
  }
  return kv_major(tiles, group, parts, Rows::up, kv_tiles);
}

}  // namespace verbatim::order
