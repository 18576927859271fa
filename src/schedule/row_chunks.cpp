#include "schedule/row_chunks.h"

#include <algorithm>

namespace verbatim {

std::vector<int64_t> row_chunk_edges(const HeadOrder& order) {
  const TileMap& tiles = *order.tiles;
  std::vector<int64_t> edges{tiles.q_edges.back()};
  for (const int32_t first : order.row_chunks) edges.push_back(tiles.q_edges[first]);
  for (const TileMap::Part& part : tiles.parts()) edges.push_back(tiles.q_edges[part.q.first]);
  std::ranges::sort(edges);
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  return edges;
}

}  // namespace verbatim
