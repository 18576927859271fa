// What a part of an order does, found by runs: where its chains begin and end, and which addends
// its rows get.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "dist/passes.h"

namespace verbatim::dist {

/// The next visit of a chain, whose runs count from 0: the first of one behind them, when it has
/// none left.
struct Position {
  int32_t run = 0, visit = 0;
  bool operator==(const Position&) const = default;
};

struct PartFacts {
  /// Chains behind each other of one stretch; in the backward on tiles behind each other, all with
  /// the same place among those that share their tile.
  struct Row : ChainRow {
    size_t stretch = 0;
    int32_t offset = 0;            // of the first in the stretch
    Position begin;                // of each
    std::optional<Position> next;  // behind the visits of each; none: they end with their last
  };
  /// Of a row of a query head. Backward: how many addends it gets, and the sum of their numbers. As
  /// a plan gives each number once, n addends are the next n when their sum is that of the next n.
  /// Forward: of how many chains it is merged, and the sum of what each says that they are.
  struct RowPart {
    int32_t q_head, q_tile;
    int32_t count;
    int64_t numbers;
  };
  std::vector<Row> chains;         // of each stretch all
  std::vector<RowPart> rows;       // by query head, ascending
  std::vector<Interval> kv_tiles;  // that are read: disjoint, ascending
};

/// The chains of an order, and their rows, by chain; none are in the forward.
struct Chains {
  explicit Chains(const HeadOrder& order);

  WholeChains whole;
  ChainRows rows;
};

/// Throws Error(invalid_plan) where the order has no such chains.
PartFacts facts_of(const OrderPart& part, const Chains& chains);

using FactsOfParts = std::unordered_map<const OrderPart*, PartFacts>;
/// Of all parts of a plan that are of the orders of their heads, found in threads. `chains`: of all
/// orders.
FactsOfParts facts_of(const DistPlan& plan, const std::map<const HeadOrder*, Chains>& chains);

}  // namespace verbatim::dist
