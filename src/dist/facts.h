// What a part of an order does, found by runs: where its chains begin and end, and which addends
// its rows get.
#pragma once

#include <cstdint>
#include <vector>

#include "dist/passes.h"

namespace verbatim::dist {

/// The next visit of a chain: the first of run WholeChain::run_end, when it has none left.
struct Position {
  int32_t run = 0, visit = 0;
  bool operator==(const Position&) const = default;
};
Position start_of(const WholeChain& chain);
Position end_of(const WholeChain& chain);

struct PartFacts {
  /// Of each chain of each stretch.
  struct ChainPart {
    int32_t chain;  // into whole_chains()
    Position begin, end;
  };
  /// Of a row of a query head. Backward: how many addends it gets, and the sum of their numbers. As
  /// a plan gives each number once, n addends are the next n when their sum is that of the next n.
  /// Forward: of how many chains it is merged, and the sum of what each says that they are.
  struct RowPart {
    int32_t q_head, q_tile;
    int32_t count;
    int64_t numbers;
  };
  std::vector<ChainPart> chains;
  std::vector<RowPart> rows;       // of the backward, by query head, ascending
  std::vector<Interval> kv_tiles;  // that are read: disjoint, ascending
};

/// Throws Error(invalid_plan) where the order has no such chains.
PartFacts facts_of(const OrderPart& part, const std::vector<WholeChain>& chains);

}  // namespace verbatim::dist
