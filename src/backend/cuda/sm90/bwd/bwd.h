// The Hopper backward as a row of the registry.
#pragma once

#include "backend/cuda/kernel.h"

namespace verbatim::cuda::sm90 {

/// bf16 and f16, equal head dims that are multiples of 8 up to 64 (tiles 128 x 128) or 128
/// (64 x 128), or 192 with 128 of V (64 x 128).
Kernel backward_kernel();

}  // namespace verbatim::cuda::sm90
