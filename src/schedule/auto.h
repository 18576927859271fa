// The rules behind "auto": cheap, and checked against search() by the tests.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "verbatim/schedule.h"

namespace verbatim {

/// The order that `auto` stands for. A pure function of one sequence's tiles and its group: nothing
/// of the device, of other heads or of what else is packed may enter.
std::string auto_order(Pass pass, const TileMap& tiles, int32_t group);

/// The placements that `auto` tries: the first of those that need the fewest resident workers. May
/// look at everything, since placements fix no bit. `head_bytes`: what a KV head should find in L2:
/// backward, the Q, dO and sums of dQ of its query heads; forward, its K and V. `rotates`: some
/// tasks wait for later ones.
std::vector<std::string> auto_placements(const std::vector<std::shared_ptr<const HeadOrder>>& heads,
                                         bool rotates, const Machine& machine, int32_t workers,
                                         int64_t head_bytes);

}  // namespace verbatim
