// CUDA status codes as verbatim::Error.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "verbatim/error.h"
#include "verbatim/mask.h"

namespace verbatim::cuda {

/// Throws Error(device) unless `status` is success. CUDA reports late: the fault may stem from
/// work that was started before `operation`, and the message says so.
void check(cudaError_t status, const char* operation);

/// Throws Error(unsupported) when a plan that needs `needed` workers at once meets a device that
/// holds only `resident` of the kernel's CTAs.
void check_residency(int64_t needed, int64_t resident, const char* operation);
/// "tiles of Q x KV", for what a kernel expects.
std::string tiles_of(const TileShape& tile);

/// Whether all CTAs of a launch have to start together, since `needed` of them must run at once on
/// `multiprocessors`. Up to half of these find room without it, beside one other such launch and
/// whatever else runs (docs/waits.md).
constexpr bool must_start_together(int64_t needed, int64_t multiprocessors) {
  return needed > 1 && 2 * needed > multiprocessors;
}

}  // namespace verbatim::cuda
