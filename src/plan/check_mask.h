// Whether a mask is for a problem.
#pragma once

#include "verbatim/mask.h"
#include "verbatim/problem.h"

namespace verbatim {

/// Throws Error(invalid_argument) in the name of `operation` where the mask has other lengths, or
/// another batch or number of KV heads than 1 and the problem's.
void check_mask(const Problem& problem, const Mask& mask, const char* operation);

}  // namespace verbatim
