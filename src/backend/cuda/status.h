// CUDA status codes as verbatim::Error.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "verbatim/error.h"

namespace verbatim::cuda {

/// Throws Error(device) unless `status` is success. CUDA reports late: the fault may stem from
/// work that was started before `operation`, and the message says so.
void check(cudaError_t status, const char* operation);

/// Throws Error(unsupported) when a plan that needs `needed` workers at once meets a device that
/// holds only `resident` of the kernel's CTAs.
void check_residency(int64_t needed, int64_t resident, const char* operation);
/// Whether a launch of which `needed` of `resident` CTAs must run at once has to wait for the whole
/// device. For up to half of it no: that much is free or will be, and other kernels go on beside
/// it.
constexpr bool must_start_together(int64_t needed, int64_t resident) {
  return 2 * needed > resident;
}

}  // namespace verbatim::cuda
