// What a launch is given, and whether its kernel can run it.
#pragma once

#include <string>
#include <string_view>

#include "backend/cuda/kernel.h"
#include "backend/cuda/runtime.h"
#include "verbatim/run.h"

namespace verbatim::cuda {

/// Of a validated problem in a run.
Scalars scalars_of(const Problem& problem, const RunOptions& run);
/// Kernels move 16 bytes at a time: throws Error(unsupported) naming the tensor unless every row
/// starts at a multiple of them.
TensorRef ref(const char* name, const TensorView& view);

/// Throws Error(unsupported): `device` cannot run the problem so; it could what is `expected`.
[[noreturn]] void refuse_kernel(const Device& device, std::string_view arithmetic,
                                const Problem& problem, const TileShape& tile,
                                const std::string& expected);
/// Throws the same unless `kernel` can run the problem in these tiles on the device.
void check_kernel(const Kernel& kernel, const Device& device, const Problem& problem,
                  const TileShape& tile);

}  // namespace verbatim::cuda
