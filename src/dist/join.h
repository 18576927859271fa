// Launches of several heads.
#pragma once

#include <cstdint>
#include <vector>

#include "verbatim/dist.h"

namespace verbatim::dist {

int32_t chains_of(const OrderPart& part);
/// The fewest heads of so many chains and visits each that fill a device, one head once, several
/// twice, and for so long that a launch is little beside it.
int32_t heads_of_launch(int64_t chains, int64_t visits);

/// Whether parts of two heads that wait for nothing of each other can be one launch in a room with
/// these query heads.
bool can_join(const Problem& problem, Interval q_heads, int32_t head, int32_t other);
/// Launches of `parts`, which are ascending by head and wait for nothing of each other: the fewest
/// with at most `most` heads each, for heads fill the time in which chains of others wait.
std::vector<Compute> join(std::vector<HeadPart> parts, Interval q_heads, const Problem& problem,
                          int32_t most);

}  // namespace verbatim::dist
