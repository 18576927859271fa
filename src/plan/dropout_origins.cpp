#include "plan/dropout_origins.h"

namespace verbatim {
namespace {

std::vector<DropoutOrigin> origins_of(const TileMap& tiles) {
  const std::vector<Sequence>& sequences = tiles.sequences;
  std::vector<DropoutOrigin> origins;
  size_t at = 0;
  for (int32_t t = 0; t < tiles.q_tiles(); ++t) {
    while (at + 1 < sequences.size() && sequences[at + 1].q_begin <= tiles.q_edges[t]) ++at;
    origins.push_back({static_cast<int64_t>(at), sequences[at].core.begin, sequences[at].k.begin});
  }
  return origins;
}

}  // namespace

DropoutOrigins::DropoutOrigins(const Plan& plan)
    : first_sequence(plan.order_of_head.size(), 0), order_of_head(plan.order_of_head) {
  for (const auto& order : plan.orders) of_order.push_back(origins_of(*order->tiles));
  const size_t kv_heads = plan.problem.kv_heads;
  for (size_t h = kv_heads; h < first_sequence.size(); ++h) {
    const auto before = h - kv_heads;  // the same KV head of the batch entry before
    const TileMap& tiles = *plan.order(static_cast<int32_t>(before)).tiles;
    first_sequence[h] = first_sequence[before] + std::ssize(tiles.sequences);
  }
}

DropoutOrigin DropoutOrigins::at(int32_t head, int32_t q_tile) const {
  const size_t order = order_of_head[head];
  DropoutOrigin origin = of_order[order][q_tile];
  origin.sequence += first_sequence[head];
  return origin;
}

}  // namespace verbatim
