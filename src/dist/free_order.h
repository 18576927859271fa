// Orders that promise no bits, where ranks need not wait for one another's sums.
#pragma once

#include <memory>

#include "dist/route.h"

namespace verbatim::dist {

/// A backward's order whose chains are cut where their visits change ranks, into parts that each
/// start from zero: all visits of a chain on one rank are one part, and dK and dV of a tile are
/// added from its parts, that of the rank that owns the tile last. Rows of dQ, each of one rank,
/// stay as they were.
std::shared_ptr<const HeadOrder> part_by_rank(const HeadOrder& order, const Owners& owners);

}  // namespace verbatim::dist
