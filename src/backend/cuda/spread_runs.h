// The lists of runs of a plan, written on the device.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/device/run_spread.h"

namespace verbatim::cuda {

/// Writes `count` lists, of which the longest has `most` runs, in sequence with the work on
/// `stream`. `lists` lies on the device.
void spread_runs(const RunSpread* lists, int32_t count, int64_t most, cudaStream_t stream);

}  // namespace verbatim::cuda
