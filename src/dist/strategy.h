// The six strategies as one table: how many ranks share heads, and on which way K and V travel.
#pragma once

#include <cstdint>
#include <vector>

#include "verbatim/dist.h"

namespace verbatim::dist {

/// How K and V get from the group that holds them to the others.
enum class Route {
  ring,         // from neighbour to neighbour
  double_ring,  // round a window of neighbours, then to the next window (LoongTrain)
  gather,       // from each to all
  needed,       // from each to those that see them
};

/// Ranks as a grid: rank outer * inner_size + inner. Those of one `outer` hold its positions and
/// share the heads; those of one `inner` have the same heads and pass K and V on.
struct Grid {
  int32_t inner = 1, outer = 1;  // sizes
  int32_t window = 1;            // of a double ring; divides `outer`
  Route route = Route::needed;

  int32_t outer_of(int32_t rank) const { return rank / inner; }
  int32_t inner_of(int32_t rank) const { return rank % inner; }
  int32_t rank(int32_t o, int32_t i) const { return o * inner + i; }
};

/// Fills in what `options` leave open. Throws as make_dist_plan().
Grid make_grid(const Problem& problem, DistOptions& options);

/// The transfers of one `inner` in turn: K and V of the group `held` go from one group to another.
struct Hop {
  int32_t from, to, held;  // outer indices
};
/// Behind one another rounds of `outer` hops, in each of which every group sends once. None with
/// Route::needed.
std::vector<Hop> hops(const Grid& grid);

}  // namespace verbatim::dist
