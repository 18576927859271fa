// Plans built by hand, one run per visit: the executor is tested without the scheduler.
#pragma once

#include "verbatim/plan.h"

namespace verbatim::test {

enum class Order {
  ascending,    // every row sums its KV tiles from left to right
  descending,   // ... from right to left
  rotating,     // KV tile i starts at row i: as many workers as tiles must run at once
  split_group,  // ascending, one chain per query head: dK and dV have several addends
};

Plan backward_plan(const Problem& problem, const Mask& mask, TileShape tile, Order order);
/// KV tiles ascending; each row's visits are cut into `splits` chains that are merged.
Plan forward_plan(const Problem& problem, const Mask& mask, TileShape tile, int splits = 1);

}  // namespace verbatim::test
