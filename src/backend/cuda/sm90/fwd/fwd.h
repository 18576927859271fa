// The Hopper forward as a row of the registry.
#pragma once

#include "backend/cuda/kernel.h"

namespace verbatim::cuda::sm90 {

/// bf16 and f16, head dim = value head dim = 64 (tiles of 192 x 128) or 128 (128 x 128). Every
/// query tile belongs to one chain: orders that split rows need another kernel.
Kernel forward_kernel();

}  // namespace verbatim::cuda::sm90
