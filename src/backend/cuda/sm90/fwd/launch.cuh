// Starts the sm90 forward kernel; included by its instances only.
#pragma once

#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90/element.cuh"
#include "backend/cuda/sm90/fwd/blocks/kernel.cuh"
#include "backend/cuda/sm90/fwd/kernel.cuh"
#include "backend/cuda/sm90/fwd/launch.h"

namespace verbatim::cuda::sm90::fwd {

template <int kHeadDim, int kHeadDimV, Dtype kDtype, Variant kVariant>
int64_t shared_bytes() {
  return sizeof(typename Config<ElementOf<kDtype>, kHeadDim, kHeadDimV, kVariant>::SharedStorage);
}

template <int kHeadDim, int kHeadDimV, Dtype kDtype, Variant kVariant>
cudaError_t launch(const Params& params, int32_t multiprocessors, cudaStream_t stream) {
  const auto start = [&]<class C>(C, auto kernel, int ctas) {
    constexpr int kShared = sizeof(typename C::SharedStorage);
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
    if (status != cudaSuccess) return status;
    const int64_t units = int64_t{params.plan.unit_count} * C::kParts;
    return launch_blocks(kernel, std::min<int64_t>(int64_t{multiprocessors} * ctas, units),
                         C::kThreads, kShared, false, stream, params);
  };
  if constexpr (kVariant == Variant::blocks) {
    using C = BlockConfig<ElementOf<kDtype>, kHeadDim, kHeadDimV>;
    return start(C{}, forward_blocks<C>, C::kCtas);
  } else {
    using C = Config<ElementOf<kDtype>, kHeadDim, kHeadDimV, kVariant>;
    return start(C{}, forward<C>, 1);
  }
}

}  // namespace verbatim::cuda::sm90::fwd
