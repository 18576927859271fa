// One order, dealt: chains are cut where their visits change ranks, and what can run as one launch
// is put together.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "verbatim/plan.h"

namespace verbatim::dist {

/// Who visits what of one head.
struct Owners {
  std::vector<int32_t> rows;   // rank of the visits of a query tile, [group, q_tiles]
  std::vector<int32_t> tiles;  // rank of a KV tile that nothing visits, [kv_tiles]
  bool operator<(const Owners& other) const {
    return rows != other.rows ? rows < other.rows : tiles < other.tiles;
  }
};

/// A chain of the backward, whether its order has it whole or cut in pieces for few workers.
struct WholeChain {
  int32_t tile = 0, addend = 0, addends = 1;
  int32_t run_begin = 0, run_end = 0;
};
std::vector<WholeChain> whole_chains(const HeadOrder& order);

/// What one rank can do at once: visits that wait for none of other ranks but those of the stages
/// before. In the backward, every chain goes on from where a share of a lower stage left it.
struct Share {
  int32_t stage = 0, rank = 0;
  std::shared_ptr<const HeadOrder> order;
  std::vector<int32_t> chain_of;  // backward: into whole_chains(), of each chain
};

/// Where the sum of a KV tile ends: with the last of its parts.
struct TileEnd {
  std::vector<int32_t> chains;  // into whole_chains(), by addend
  int32_t stage = 0;            // when all parts are complete
  int32_t rank = 0;             // of the last part
};

struct Deal {
  std::vector<Share> shares;  // ascending by stage, then rank
  // Of the backward:
  std::vector<WholeChain> chains;
  std::vector<std::vector<int32_t>> links;  // shares that a chain goes through, by chain
  std::vector<TileEnd> ends;                // by KV tile
};

Deal deal(const HeadOrder& order, const Owners& owners);

}  // namespace verbatim::dist
