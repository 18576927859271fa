// The Hopper forward as a row of the registry.
#pragma once

#include "backend/cuda/kernel.h"

namespace verbatim::cuda::sm90 {

/// bf16 and f16, equal head dims that are multiples of 8 up to 64 (tiles of 192 x 128) or 128
/// (128 x 128), or 192 with 128 of V (128 x 64). Every query tile belongs to one chain: orders that
/// split rows need another kernel.
Kernel forward_kernel();

}  // namespace verbatim::cuda::sm90
