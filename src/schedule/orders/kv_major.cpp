// Orders in which all dQ rows share one permutation of the KV tiles.
#include <algorithm>
#include <numeric>

#include "contract/rules.h"
#include "plan/row_counters.h"
#include "schedule/orders/orders.h"

namespace verbatim::order {
namespace {

void add_up(std::vector<Run>& runs, const Stair& stair, const TileRun& tiles) {
  runs.push_back({.first = stair.begin,
                  .count = stair.size(),
                  .step = 1,
                  .addend = stair.value,
                  .addend_step = stair.step,
                  .slice_begin = tiles.full() ? 0 : tiles.slice_begin,
                  .slice_count = tiles.slice_count,
                  .addend_every = stair.every});
}

// The same visits from the last row to the first: a cut last plateau comes first, on its own.
void add_down(std::vector<Run>& runs, const Stair& stair, const TileRun& tiles) {
  const int32_t cut = stair.step == 0 ? 0 : stair.size() % stair.every;
  if (cut != 0) add_down(runs, {stair.end - cut, stair.end, stair.at(stair.end - 1), 0, 1}, tiles);
  add_up(runs, {stair.begin, stair.end - cut, stair.value, stair.step, stair.every}, tiles);
  Run& run = runs.back();
  run.addend = run.addend_of(run.count - 1);
  run.addend_step = -run.addend_step;
  run.first += run.count - 1;
  run.step = -1;
}

// Appends the visits of one column by query head 0 and counts them; `stairs` is scratch.
void visit_column(std::vector<Run>& runs, std::span<const TileRun> column, Rows rows,
                  RowCounters& counters, std::vector<Stair>& stairs) {
  for (size_t k = 0; k < column.size(); ++k) {
    const TileRun& tiles = rows == Rows::up ? column[k] : column[column.size() - 1 - k];
    stairs.clear();
    counters.take(tiles.first, tiles.last, stairs);
    if (rows == Rows::up) {
      for (const Stair& stair : stairs) add_up(runs, stair, tiles);
    } else {
      for (auto stair = stairs.rbegin(); stair != stairs.rend(); ++stair)
        add_down(runs, *stair, tiles);
    }
  }
}

/// Visits by the rows of the core.
int64_t core_visits(std::span<const TileRun> column, TileRange core) {
  int64_t visits = 0;
  for (const TileRun& run : column)
    visits += std::max(std::min(run.last, core.last) - std::max(run.first, core.first), 0);
  return visits;
}

}  // namespace

int32_t Parts::of(int32_t group, int64_t visits, int64_t most) const {
  const int32_t parts = count == 0 || count > group ? group : count;
  if (!even) return parts;
  return static_cast<int32_t>(contract::even_parts(group, parts, visits, most));
}

HeadOrder kv_major(const Tiles& tiles, int32_t group, Parts parts, Rows rows,
                   std::span<const int32_t> kv_tiles) {
  HeadOrder order;
  order.tiles = tiles;
  order.group = group;
  // The group shares mask and numbering, so one query head's runs do for all.
  RowCounters counters(tiles->q_tiles());
  std::vector<Run> runs;
  std::vector<size_t> ends;     // of each column in `runs`
  std::vector<int64_t> visits;  // of each column, by rows of the core
  const TileRange core = tiles->core_q_tiles();
  std::vector<Stair> stairs;
  for (const int32_t kv_tile : kv_tiles) {
    visit_column(runs, tiles->column(kv_tile), rows, counters, stairs);
    ends.push_back(runs.size());
    visits.push_back(core_visits(tiles->column(kv_tile), core));
  }
  order.row_addends = counters.values();
  const int64_t most = visits.empty() ? 0 : std::ranges::max(visits);
  order.runs = Runs::of_repeats(std::move(runs));

  const auto add_chain = [&](size_t column, int32_t part, int32_t shared) {
    const size_t begin = column == 0 ? 0 : ends[column - 1], end = ends[column];
    Chain chain{.tile = kv_tiles[column],
                .run_begin = static_cast<int32_t>(order.runs.size()),
                .addend = part,
                .addends = shared};
    const int32_t head = first_head(group, part, shared);
    order.runs.repeat(begin, end, head, first_head(group, part + 1, shared) - head);
    chain.run_end = static_cast<int32_t>(order.runs.size());
    const auto chains = static_cast<int32_t>(order.chains.size());
    order.chains.push_back(chain);
    order.tasks.push_back({chains, chains + 1});
  };
  if (parts.even) {
    // A chain of many query heads waits for all parts of the KV tiles before: these are issued
    // first.
    for (size_t column = 0; column < kv_tiles.size(); ++column) {
      const int32_t shared = parts.of(group, visits[column], most);
      for (int32_t part = 0; part < shared; ++part) add_chain(column, part, shared);
    }
    return order;
  }
  // One part after another, so that chains that share a tile are far apart in time.
  const int32_t shared = parts.of(group, most, most);
  for (int32_t part = 0; part < shared; ++part)
    for (size_t column = 0; column < kv_tiles.size(); ++column) add_chain(column, part, shared);
  return order;
}

std::vector<int32_t> left_to_right(const TileMap& tiles) {
  std::vector<int32_t> kv_tiles(tiles.kv_tiles());
  std::iota(kv_tiles.begin(), kv_tiles.end(), 0);
  return kv_tiles;
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
