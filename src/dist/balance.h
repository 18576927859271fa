// The sharding `balanced` where visits come in units that wait for no other rank.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "verbatim/dist.h"

namespace verbatim::dist {

/// Rows whose visits wait for no sums where one rank makes them: a chunk of rows, or a sequence
/// without chunks.
struct Unit {
  RowRange range;
  std::vector<double> areas;  // of the mask, by KV head
};

struct Balance {
  std::vector<HeldRows> held;     // by rank: as many rows, but for what edges do not allow
  std::vector<MovedHeads> moved;  // by range, heads and rank
  // Of the mask: what a rank visits at most, all, and all of windows.
  double heaviest = 0, area = 0, narrow = 0;
};

/// Every rank holds its share of rows: units, the heaviest first, go to the lightest that may hold
/// all of one, else in parts to several. Heads of a unit are visited where most of it lies; those
/// of units that are worth sending go to others while one rank has more to do than the rest, where
/// single heads may (`by_head`). `edges`: where rows may be cut, by batch entry. `group`: query
/// heads of a KV head.
Balance balance(std::span<const Unit> units, std::span<const std::vector<int64_t>> edges,
                int64_t group, int32_t world, bool by_head);

}  // namespace verbatim::dist
