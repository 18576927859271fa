// Starts the sm90 forward kernel; included by its instances only.
#pragma once

#include <type_traits>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90/fwd/kernel.cuh"
#include "backend/cuda/sm90/fwd/launch.h"

namespace verbatim::cuda::sm90 {

template <Dtype kDtype>
using ElementOf = std::conditional_t<kDtype == Dtype::bf16, cutlass::bfloat16_t, cutlass::half_t>;

template <class Tile, Dtype kDtype, bool kExtras>
int64_t shared_bytes() {
  constexpr int64_t kBytes = sizeof(SharedStorage<Tile, ElementOf<kDtype>>);
  static_assert(kBytes <= kMaxShared);
  return kBytes;
}

template <class Tile, Dtype kDtype, bool kExtras>
cudaError_t launch(const FwdArgs& args, int32_t blocks, cudaStream_t stream) {
  const auto kernel = forward_kernel<Tile, ElementOf<kDtype>, kExtras>;
  const auto bytes = static_cast<int>(shared_bytes<Tile, kDtype, kExtras>());
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status != cudaSuccess) return status;
  return launch_blocks(kernel, blocks, FwdConfig<Tile>::threads, bytes, false, stream, args);
}

}  // namespace verbatim::cuda::sm90
