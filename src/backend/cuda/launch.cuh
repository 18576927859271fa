// Starting kernels whose CTAs draw tickets and may wait for one another.
#pragma once

#include <algorithm>

#include "backend/cuda/kernel.h"
#include "backend/cuda/status.h"

namespace verbatim::cuda {

/// Starts kernel(args...) on `blocks` CTAs, if any; `together`: on all of them at once or not yet.
template <class... Args>
cudaError_t launch_blocks(void (*kernel)(Args...), int64_t blocks, int threads,
                          int64_t shared_bytes, bool together, cudaStream_t stream,
                          const std::type_identity_t<Args>&... args) {
  if (blocks == 0) return cudaSuccess;
  cudaLaunchAttribute cooperative{};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &cooperative;
  config.numAttrs = together ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args...);
}

/// Starts a kernel that has no plan: a CTA for every chain.
template <class Params>
cudaError_t launch_chains(void (*kernel)(Params), int threads, int shared_bytes,
                          cudaStream_t stream, const std::type_identity_t<Params>& p) {
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
  if (status != cudaSuccess) return status;
  return launch_blocks(kernel, p.chains(), threads, shared_bytes, false, stream, p);
}

/// CTAs of a kernel that fit on a multiprocessor of the current device.
template <class... Args>
cudaError_t residents_of(void (*kernel)(Args...), int threads, int64_t shared_bytes, int* count) {
  const int bytes = static_cast<int>(shared_bytes);
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status != cudaSuccess) return status;
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(count, kernel, threads, bytes);
}

/// CTAs that draw `units` tickets, where `resident` of the kernel's fit on a multiprocessor: as
/// many as fit at once on the multiprocessors of the stream. Throws Error(unsupported) when the
/// plan needs more of them at once.
inline int64_t workers_of(const char* name, int resident, const LaunchContext& context,
                          int32_t units) {
  const int64_t all = int64_t{resident} * context.multiprocessors;
  check_residency(context.residency, all, name);
  return std::min<int64_t>(all, units);
}

/// The same of a compiled kernel, so before the first of a launch.
template <class... Args>
int64_t workers_of(const char* name, void (*kernel)(Args...), int threads, int64_t shared_bytes,
                   const LaunchContext& context, int32_t units) {
  if (units == 0) return 0;
  int resident = 0;
  check(residents_of(kernel, threads, shared_bytes, &resident), name);
  return workers_of(name, resident, context, units);
}

/// Starts kernel(args...) on workers_of() CTAs.
template <class... Args>
void launch_workers(const char* name, void (*kernel)(Args...), int64_t workers, int threads,
                    int64_t shared_bytes, const LaunchContext& context,
                    const std::type_identity_t<Args>&... args) {
  if (workers == 0) return;
  check(launch_blocks(kernel, workers, threads, shared_bytes, context.together, context.stream,
                      args...),
        name);
}

/// Starts kernel(args...) with one CTA of `threads` threads for every `threads` of `total` threads.
template <class... Args>
void launch_threads(const char* name, void (*kernel)(Args...), int threads, int64_t total,
                    cudaStream_t stream, const std::type_identity_t<Args>&... args) {
  if (total == 0) return;
  check(launch_blocks(kernel, (total + threads - 1) / threads, threads, 0, false, stream, args...),
        name);
}

}  // namespace verbatim::cuda
