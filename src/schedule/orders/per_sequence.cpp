// An order of a whole head from orders of its sequences and their padding.
#include "schedule/orders/orders.h"

namespace verbatim::order {
namespace {

/// Adds the order of the part whose first tiles are `kept` and `streamed`.
void append(HeadOrder& whole, const HeadOrder& part, int32_t kept, int32_t streamed) {
  const auto runs = static_cast<int32_t>(whole.runs.size());
  const auto chains = static_cast<int32_t>(whole.chains.size());
  whole.runs.append(part.runs, streamed);
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
  for (const int32_t first : part.row_chunks) whole.row_chunks.push_back(streamed + first);
}

}  // namespace

HeadOrder per_sequence(const Tiles& tiles, const std::function<HeadOrder(const Tiles&)>& build) {
  const std::vector<TileMap::Part> parts = tiles->parts();
  if (parts.size() == 1) return build(tiles);
  HeadOrder whole;
  for (const TileMap::Part& part : parts) {
    const HeadOrder order = build(std::make_shared<const TileMap>(tiles->part(part)));
    if (whole.runs.empty()) {  // what has no visits may go by any name
      whole.pass = order.pass;
      whole.group = order.group;
      whole.name = order.name;
    }
    if (!order.runs.empty() && whole.name != order.name) whole.name = "auto";
    const bool backward = order.pass == Pass::backward;
    append(whole, order, backward ? part.kv.first : part.q.first,
           backward ? part.q.first : part.kv.first);
  }
  whole.tiles = tiles;
  return whole;
}

}  // namespace verbatim::order
