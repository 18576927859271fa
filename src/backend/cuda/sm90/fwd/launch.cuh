// Starts the sm90 forward kernel; included by its instances only.
#pragma once

#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90/element.cuh"
#include "backend/cuda/sm90/fwd/kernel.cuh"
#include "backend/cuda/sm90/fwd/launch.h"

namespace verbatim::cuda::sm90::fwd {

template <int kHeadDim, int kHeadDimV, Dtype kDtype, Variant kVariant>
int64_t shared_bytes() {
  return sizeof(typename Config<ElementOf<kDtype>, kHeadDim, kHeadDimV, kVariant>::SharedStorage);
}

template <int kHeadDim, int kHeadDimV, Dtype kDtype, Variant kVariant>
cudaError_t launch(const Params& params, int32_t blocks, cudaStream_t stream) {
  using C = Config<ElementOf<kDtype>, kHeadDim, kHeadDimV, kVariant>;
  constexpr int kShared = sizeof(typename C::SharedStorage);
  const cudaError_t status =
      cudaFuncSetAttribute(forward<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (status != cudaSuccess) return status;
  return launch_blocks(forward<C>, blocks, C::kThreads, kShared, false, stream, params);
}

}  // namespace verbatim::cuda::sm90::fwd
