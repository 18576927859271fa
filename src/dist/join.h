// Launches of several heads.
#pragma once

#include <cstdint>
#include <vector>

#include "verbatim/dist.h"

namespace verbatim::dist {

/// Chains that one launch should have, or more: all workers of a rank have two.
int32_t chains_of_launch();
int32_t chains_of(const OrderPart& part);

/// Launches of `parts`, which are ascending by head and wait for nothing of each other. Each is of
/// the fewest heads that have chains_of_launch() together, at most `most`, where these can be one.
std::vector<Compute> join(std::vector<HeadPart> parts, const RankPlan& rank, const Problem& problem,
                          int32_t most);

}  // namespace verbatim::dist
