// Starts the sm90 forward kernel; included by its instances only.
#pragma once

#include <type_traits>

#include "backend/cuda/sm90/fwd/kernel.cuh"
#include "backend/cuda/sm90/fwd/launch.h"

namespace verbatim::cuda::sm90 {

template <class Tile, Dtype kDtype, bool kExtras>
cudaError_t launch(const FwdArgs& args, int32_t blocks, cudaStream_t stream) {
  using Element =
      std::conditional_t<kDtype == Dtype::bf16, cutlass::bfloat16_t, cutlass::half_t>;
  constexpr int kBytes = sizeof(SharedStorage<Tile, Element>);
  static_assert(kBytes <= kMaxShared);
  const auto kernel = forward_kernel<Tile, Element, kExtras>;
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess) return status;
  kernel<<<blocks, FwdConfig<Tile>::threads, kBytes, stream>>>(args);
  return cudaGetLastError();
}

template <class Tile>
int64_t shared_bytes() {
  return sizeof(SharedStorage<Tile, cutlass::half_t>);
}

}  // namespace verbatim::cuda::sm90
