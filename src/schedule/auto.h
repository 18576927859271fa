// The rules behind "auto": cheap, and checked against search() by the tests.
#pragma once

#include <string>

#include "verbatim/schedule.h"

namespace verbatim {

/// The order that `auto` stands for. A pure function of one head's tiles, its group and the level:
/// at `invariant` and `gpu_to_gpu` nothing of the device or of the other heads may enter.
std::string auto_order(Pass pass, const TileMap& tiles, int32_t group, Level level);

/// The placement that `auto` stands for; may look at everything, since it fixes no bit.
std::string auto_placement(const std::vector<std::shared_ptr<const HeadOrder>>& heads,
                           const Machine& machine, int32_t workers);

}  // namespace verbatim
