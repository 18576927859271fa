// The table of compiled kernels.
#pragma once

#include <span>

#include "backend/cuda/kernel.h"

namespace verbatim::cuda {

/// One for each pass and arithmetic.
std::span<const Kernel> kernels();

}  // namespace verbatim::cuda
