#include "schedule/row_chunks.h"

#include "schedule/orders/orders.h"

namespace verbatim {

std::vector<int64_t> row_chunk_edges(const HeadOrder& order) {
  const int32_t rows = order::rows_asked(order.pass, order.name);
  if (rows == 0) return {};
  const TileMap& tiles = *order.tiles;
  std::vector<int64_t> edges;
  for (const TileMap::Part& part : tiles.parts())
    for (const order::RowChunk& chunk : order::row_chunks(tiles.part(part), rows))
      if (chunk.first < part.q.count())  // the end is where the next part begins
        edges.push_back(tiles.q_edges[part.q.first + chunk.first]);
  edges.push_back(tiles.q_edges.back());
  return edges;
}

}  // namespace verbatim
