// Starts the sm90 backward kernels; included by their instances only.
#pragma once

#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90/bwd/edges.cuh"
#include "backend/cuda/sm90/bwd/kernel.cuh"
#include "backend/cuda/sm90/bwd/launch.h"
#include "backend/cuda/sm90/element.cuh"

namespace verbatim::cuda::sm90::bwd {

template <int kHeadDim, Dtype kDtype, Variant kVariant>
int64_t shared_bytes() {
  return sizeof(typename Config<ElementOf<kDtype>, kHeadDim, kVariant>::SharedStorage);
}

template <int kHeadDim, Dtype kDtype, Variant kVariant, class Recorder>
cudaError_t launch(const Params& params, int32_t blocks, bool together, cudaStream_t stream) {
  using C = Config<ElementOf<kDtype>, kHeadDim, kVariant>;
  constexpr int kShared = sizeof(typename C::SharedStorage);
  cudaError_t status = cudaFuncSetAttribute(backward<C, Recorder>,
                                            cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (status != cudaSuccess) return status;
  const BackwardParams& common = params.common;
  const int64_t row_tiles =
      int64_t{common.sizes.batch} * common.sizes.q_heads * common.hand_off.max_q_tiles;
  if (row_tiles > 0) {
    status = launch_blocks(prepare<C>, row_tiles, kEdgeThreads, 0, false, stream, common,
                           params.workspace, params.unit);
  }
  if (status == cudaSuccess && blocks > 0) {
    status =
        launch_blocks(backward<C, Recorder>, blocks, kThreads, kShared, together, stream, params);
  }
  if (status == cudaSuccess && !params.ordered && row_tiles > 0) {
    status = launch_blocks(convert<C>, row_tiles, kEdgeThreads, 0, false, stream, common,
                           params.workspace);
  }
  return status;
}

}  // namespace verbatim::cuda::sm90::bwd
