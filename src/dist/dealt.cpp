#include "dist/dealt.h"

#include <utility>

namespace verbatim::dist {
namespace {

/// The rows of tiles, by who visits them, of `count`.
std::vector<HeldRows> rows_of(const std::vector<Visited>& tiles, int64_t batch,
                              const std::vector<int64_t>& edges, int32_t count) {
  std::vector<std::vector<RowRange>> ranges(static_cast<size_t>(count));
  for (const auto& [who, first, last] : tiles)
    ranges[static_cast<size_t>(who)].push_back(
        {batch, {edges[static_cast<size_t>(first)], edges[static_cast<size_t>(last)]}});
  std::vector<HeldRows> rows;
  for (auto& each : ranges) rows.emplace_back(std::move(each));
  return rows;
}

std::vector<Visited> by_rank(std::vector<Visited> tiles, const Rooms& rooms) {
  for (Visited& each : tiles) each.room = rooms.rank_of(each.room);
  return tiles;
}

std::vector<Visited> ended_tiles(const Deal& deal) {
  std::vector<Visited> tiles;
  for (const TileEnd& end : deal.ends)
    tiles.push_back({end.room, end.kv_tile, end.kv_tile + end.count});
  return tiles;
}

}  // namespace

Dealt::Dealt(std::shared_ptr<const Deal> dealt, std::vector<int32_t> to, int64_t batch,
             const TileMap& tiles, const Rooms& all, int32_t world)
    : like(std::move(dealt)),
      rooms(std::move(to)),
      deal(deal_to(like, rooms)),
      q(rows_of(deal->q_tiles, batch, tiles.q_edges, all.count())),
      kv(rows_of(by_rank(deal->kv_tiles, all), batch, tiles.kv_edges, world)),
      ended(rows_of(by_rank(ended_tiles(*deal), all), batch, tiles.kv_edges, world)),
      visits(static_cast<size_t>(world)) {
  for (const Share& share : deal->shares)
    visits[static_cast<size_t>(all.rank_of(share.room))] = true;
}

}  // namespace verbatim::dist
