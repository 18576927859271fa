// Orders that promise no bits, where ranks need not wait for one another's sums.
#pragma once

#include <cstdint>
#include <functional>

#include "dist/route.h"

namespace verbatim::dist {

/// Gives a backward's plan orders whose chains are cut where their visits change rooms, into parts
/// that each start from zero: all visits of a chain in one room are one part, and dK and dV of a
/// tile are added from its parts, by room. Rows of dQ, each of one room, stay as they were.
/// `owners_of`: a head's.
void free_orders(Plan& plan, const std::function<Owners(int32_t)>& owners_of);

}  // namespace verbatim::dist
