// Starts the sm90 forward kernel; included by its instances only.
#pragma once

#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90/element.cuh"
#include "backend/cuda/sm90/fwd/blocks/kernel.cuh"
#include "backend/cuda/sm90/fwd/kernel.cuh"
#include "backend/cuda/sm90/fwd/launch.h"

namespace verbatim::cuda::sm90::fwd {

/// The configuration of an instance.
template <int kHeadDim, int kHeadDimV, Dtype kDtype, Variant kVariant>
using ConfigOf = std::conditional_t<kVariant == Variant::blocks,
                                    BlockConfig<ElementOf<kDtype>, kHeadDim, kHeadDimV>,
                                    Config<ElementOf<kDtype>, kHeadDim, kHeadDimV, kVariant>>;

template <int kHeadDim, int kHeadDimV, Dtype kDtype, Variant kVariant>
int64_t shared_bytes() {
  return sizeof(typename ConfigOf<kHeadDim, kHeadDimV, kDtype, kVariant>::SharedStorage);
}

template <int kHeadDim, int kHeadDimV, Dtype kDtype, Variant kVariant>
cudaError_t launch(const Params& params, int32_t multiprocessors, cudaStream_t stream) {
  using C = ConfigOf<kHeadDim, kHeadDimV, kDtype, kVariant>;
  constexpr int kShared = sizeof(typename C::SharedStorage);
  void (*kernel)(Params);
  if constexpr (kVariant == Variant::blocks) {
    kernel = forward_blocks<C>;
  } else {
    kernel = forward<C>;
  }
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (status != cudaSuccess) return status;
  const int64_t parts = int64_t{params.plan.unit_count} * C::kParts;
  const int64_t ctas = std::min(int64_t{multiprocessors} * C::kCtas, parts);
  return launch_blocks(kernel, ctas, C::kThreads, kShared, false, stream, params);
}

}  // namespace verbatim::cuda::sm90::fwd
