// About how long all ranks take for a backward.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dist/deal.h"

namespace verbatim::dist {

/// When the last share of all heads (`deals`, by head) ends, in the unit of Share::time. Ranks make
/// their shares by stage, and each head is as many stages behind the one before as its chains start
/// in; a share begins when those are over that it goes on from. Messages take no time.
double duration(const std::vector<std::shared_ptr<const Deal>>& deals, int32_t world);

}  // namespace verbatim::dist
