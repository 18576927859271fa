// That what a query head does in an order visits every tile of its mask once.
#pragma once

#include <vector>

#include "plan/subject.h"
#include "plan/trails.h"

namespace verbatim {

/// Whether to go visit by visit costs less than run by run. `trail` makes all visits, or is
/// refused.
bool has_short_runs(const Subject& subject, const Trail& trail);

/// Throws unless `trail`, whose runs are in range, visits every tile of its mask once, masked as it
/// should be.
void check_complete(const Subject& subject, const Trail& trail);

/// Whether one look at each run shows that the runs are in range, that `trails` are complete, and
/// in the backward that rows count up: of some orders it does. False proves nothing.
bool is_straight(const Subject& subject, const std::vector<Trail>& trails);

}  // namespace verbatim
