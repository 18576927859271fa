// An order of a whole head from orders of its sequences.
#include "schedule/orders/orders.h"

namespace verbatim::order {
namespace {

/// Adds the order of the sequence whose first tiles are `kept` and `streamed`.
void append(HeadOrder& whole, const HeadOrder& part, int32_t kept, int32_t streamed) {
  const auto runs = static_cast<int32_t>(whole.runs.size());
  const auto chains = static_cast<int32_t>(whole.chains.size());
  for (Run run : part.runs) {
    run.first += streamed;
    whole.runs.push_back(run);
  }
  for (Chain chain : part.chains) {
    chain.tile += kept;
    chain.run_begin += runs;
    chain.run_end += runs;
    whole.chains.push_back(chain);
  }
  for (const Task& task : part.tasks)
    whole.tasks.push_back({task.chain_begin + chains, task.chain_end + chains});
  whole.row_addends.insert(whole.row_addends.end(), part.row_addends.begin(),
                           part.row_addends.end());
}

}  // namespace

HeadOrder per_sequence(const Tiles& tiles, const std::function<HeadOrder(const Tiles&)>& build) {
  if (tiles->sequences.size() == 1) return build(tiles);
  HeadOrder whole;
  int32_t q_tile = 0, kv_tile = 0;
  for (size_t i = 0; i < tiles->sequences.size(); ++i) {
    const auto part = std::make_shared<const TileMap>(tiles->sequence(i));
    const HeadOrder order = build(part);
    if (whole.runs.empty()) {  // what has no visits may go by any name
      whole.pass = order.pass;
      whole.group = order.group;
      whole.name = order.name;
    }
    if (!order.runs.empty() && whole.name != order.name) whole.name = "auto";
    const bool backward = order.pass == Pass::backward;
    append(whole, order, backward ? kv_tile : q_tile, backward ? q_tile : kv_tile);
    q_tile += part->q_tiles();
    kv_tile += part->kv_tiles();
  }
  whole.tiles = tiles;
  return whole;
}

}  // namespace verbatim::order
