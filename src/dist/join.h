// Launches of several heads.
#pragma once

#include <cstdint>
#include <vector>

#include "verbatim/dist.h"

namespace verbatim::dist {

int32_t chains_of(const OrderPart& part);
/// Heads of so many chains each that should be one launch.
int32_t heads_of_launch(int64_t chains);

/// Launches of `parts`, which are ascending by head and wait for nothing of each other. A head
/// whose chains fill a device is one by itself, for its sums can go on sooner; others are joined,
/// the fewest that fill it twice, at most `most`, where these can be one.
std::vector<Compute> join(std::vector<HeadPart> parts, const RankPlan& rank, const Problem& problem,
                          int32_t most);

}  // namespace verbatim::dist
