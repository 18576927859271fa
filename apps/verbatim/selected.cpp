#include "selected.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "core/random.h"

namespace verbatim::app {

Lists draw_lists(const Problem& problem, const TileMap& tiles, int64_t count) {
  const int64_t room = std::min<int64_t>(count, tiles.kv_tiles());
  Lists lists{{}, {problem.batch, problem.kv_heads, tiles.q_tiles(), room}, "random"};
  Random random(problem.seed);
  for (int64_t head = 0; head < problem.batch * problem.kv_heads; ++head) {
    for (int32_t tile = 0; tile < tiles.q_tiles(); ++tile) {
      std::vector<int32_t> seen;
      for (const TileRun& run : tiles.row(tile))
        for (int32_t block = run.last - 1; block >= run.first; --block) seen.push_back(block);
      std::ranges::sort(seen, std::greater());
      for (int64_t i = 1; i < std::min(room, std::ssize(seen)); ++i)
        std::swap(seen[i], seen[random.between(i, std::ssize(seen) - 1)]);
      seen.resize(room, -1);
      lists.entries.insert(lists.entries.end(), seen.begin(), seen.end());
    }
  }
  return lists;
}

Mask selected_mask(const Mask& mask, const TileMap& tiles, const Lists& lists) {
  const auto [batch, heads, rows, room] = lists.shape;
  std::vector<int64_t> row_begin;
  std::vector<int32_t> columns;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t row = 0; row < rows; ++row) {
        row_begin.push_back(std::ssize(columns));
        const auto list = lists.blocks().list(b, h, row);
        columns.insert(columns.end(), list.begin(), list.end());
      }
      row_begin.push_back(std::ssize(columns));
    }
  }
  return masks::variable_block_sparse(tiles.q_edges, tiles.kv_edges,
                                      masks::BlockLists{batch, heads, row_begin, columns})
      .intersect(mask);
}

void refuse_planning(const PlanningOptions& planning, const TileMap& tiles) {
  for (const auto& [option, value, without] :
       {std::tuple{"--order", planning.order, "auto"},
        {"--forward-order", planning.forward_order, "auto"},
        {"--placement", planning.placement, "auto"},
        {"--machine", planning.machine, ""},
        {"--memo", planning.memo, ""},
        {"--arithmetic", planning.arithmetic, ""},
        {"--workers", fmt::to_string(planning.workers), "0"}})
    if (value != without)
      fail("a program whose blocks an index tensor names runs without a plan",
           {option, value, "--kernel without it", ""});
  for (const auto& [option, size, own] : {std::tuple{"--tile-q", planning.tile_q, tiles.shape.q},
                                          {"--tile-kv", planning.tile_kv, tiles.shape.kv}})
    if (size != 0 && size != own)
      fail("the program has other tiles",
           {option, fmt::to_string(size), fmt::to_string(own), fmt::format("{} {}", option, own)});
}

Json describe(const SelectedAttention& attention, const Lists& lists, const Problem& problem,
              const Mask& mask) {
  const TileMap& tiles = attention.tiles();
  const int64_t named = std::ssize(lists.entries) - std::ranges::count(lists.entries, int32_t{-1});
  return {{"index", attention.index()},
          {"source", lists.source},
          {"arithmetic", attention.arithmetic()},
          {"tile", {{"q", tiles.shape.q}, {"kv", tiles.shape.kv}}},
          {"q_tiles", tiles.q_tiles()},
          {"kv_tiles", tiles.kv_tiles()},
          {"blocks", named},
          {"total_area", mask.area(problem.batch, problem.q_heads, problem.kv_heads)}};
}

}  // namespace verbatim::app
