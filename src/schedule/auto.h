// Who does what when under "auto". Nothing here fixes a bit.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "verbatim/schedule.h"

namespace verbatim {

/// Whether chains of an order that rotates had better be cut: through a group they are long, and
/// pieces fill the workers where rounds of whole heads, of which there are `heads`, would leave
/// some idle.
bool runs_better_in_pieces(const HeadOrder& head, size_t heads, int32_t workers);

/// The placements that `auto` tries: the first of those that need the fewest resident workers. May
/// look at everything, since placements fix no bit. `head_bytes`: what a KV head should find in L2:
/// backward, the Q, dO and sums of dQ of its query heads; forward, its K and V. `rotates`: some
/// tasks wait for later ones.
std::vector<std::string> auto_placements(const std::vector<std::shared_ptr<const HeadOrder>>& heads,
                                         bool rotates, const Machine& machine, int32_t workers,
                                         int64_t head_bytes);

}  // namespace verbatim
