// Whether a forward's tasks lie in its queue as pairs of query heads that load the same K and V.
#pragma once

#include "verbatim/plan.h"

namespace verbatim {

/// Whether tasks 2 i and 2 i + 1 of a forward's queue are a chain each, of one query tile and of
/// neighbouring query heads of one KV head, with the same visits. A kernel may then compute both
/// from one copy of what they visit.
bool heads_in_pairs(const Plan& plan);

}  // namespace verbatim
