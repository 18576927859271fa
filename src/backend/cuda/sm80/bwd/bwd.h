// The portable backward as a row of the registry.
#pragma once

#include "backend/cuda/kernel.h"

namespace verbatim::cuda::sm80 {

/// bf16 and f16, head dims that are multiples of 8 up to 256; KV tiles up to 128 keys (64 above
/// head dim 128), query tiles of any height.
Kernel backward_kernel();

/// Config is a sm80::Backward; compiled in the instances that CMake lists.
template <class Config>
void launch_backward(const BackwardParams& params, const LaunchContext& context);

}  // namespace verbatim::cuda::sm80
