#include "schedule/row_chunks.h"

#include "schedule/orders/orders.h"

namespace verbatim {

std::vector<int64_t> row_chunk_edges(const HeadOrder& order) {
  const int32_t rows = order::rows_asked(order.pass, order.name);
  if (rows == 0) return {};
  const TileMap& tiles = *order.tiles;
  std::vector<int64_t> edges;
  for (const TileMap::Part& part : tiles.parts())
    for (const int32_t tile : order::chunk_edges(tiles.part(part), rows))
      if (tile < part.q.count())  // the last edge is where the next part begins
        edges.push_back(tiles.q_edges[part.q.first + tile]);
  edges.push_back(tiles.q_edges.back());
  return edges;
}

}  // namespace verbatim
