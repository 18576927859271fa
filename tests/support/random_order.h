// Orders that no rule makes.
#pragma once

#include <cstdint>

#include "verbatim/plan.h"

namespace verbatim::test {

/// `plan`, whose chains are no pieces, with the same chains in a random sequence, each making its
/// visits in another; addends are numbered as a random run of `at_once` chains a head would meet
/// them. Proved, with as many workers as its waits need, `workers` at least.
Plan in_random_order(const Plan& plan, uint64_t seed, int32_t at_once, int32_t workers);

}  // namespace verbatim::test
