// How many heads of a backward are under way at once, for what they may share in turn.
#pragma once

#include <cstdint>

#include "verbatim/plan.h"

namespace verbatim {

/// The least S so that head h may use the memory of head h - S for its sums of dQ: all tasks of
/// heads up to h - S are issued before the first of h, so a wait for them ends, with half as many
/// tasks between them as there are workers, so that hardly one waits. The number of heads where a wait
/// could be in vain or where rows differ: without a queue, without turns, with several orders.
int32_t live_heads(const Plan& plan);

}  // namespace verbatim
