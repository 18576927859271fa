// The portable forward as a row of the registry.
#pragma once

#include "backend/cuda/kernel.h"

namespace verbatim::cuda::sm80 {

/// bf16 and f16, head dims that are multiples of 8 up to 256; query tiles up to 128 rows, KV tiles
/// of any width.
Kernel forward_kernel();

/// Config is a sm80::Forward; compiled in the instances that CMake lists.
template <class Config>
void launch_forward(const ForwardParams& params, const LaunchContext& context);

}  // namespace verbatim::cuda::sm80
