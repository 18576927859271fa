// Which chains of an order do the same, one addend later: most of a regular one.
#pragma once

#include <cstdint>
#include <vector>

#include "verbatim/plan.h"

namespace verbatim {

/// Chains behind each other, on tiles behind each other, up or down. Each makes the visits of the
/// one before with addends that are one more. One chain may be so by itself.
struct AlikeChains {
  int32_t chain = 0, count = 0;  // into HeadOrder::chains
};

/// All chains of a backward, in the sequence in which its tasks are issued. Pieces of chains are by
/// themselves.
std::vector<AlikeChains> alike_chains(const HeadOrder& order);

}  // namespace verbatim
