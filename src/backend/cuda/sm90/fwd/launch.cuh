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
using ConfigOf = std::conditional_t<
    is_by_blocks(kVariant),
    BlockConfig<ElementOf<kDtype>, kHeadDim, kHeadDimV, kVariant == Variant::blocks ? 1 : 2>,
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
  if constexpr (is_by_blocks(kVariant)) {
    kernel = forward_blocks<C>;
  } else {
    kernel = forward<C>;
  }
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (status != cudaSuccess) return status;
  int64_t units = params.plan.unit_count;
  if constexpr (is_by_blocks(kVariant)) units /= C::kHeads;
  const int64_t parts = units * C::kParts;
  const int64_t ctas = std::min(int64_t{multiprocessors} * C::kCtas, parts);
  return launch_blocks(kernel, ctas, C::kThreads, kShared, false, stream, params);
}

}  // namespace verbatim::cuda::sm90::fwd
