// Starts the kernels of device/row_delta.cuh.
#pragma once

#include "backend/cuda/device/row_delta.cuh"
#include "backend/cuda/launch.cuh"

namespace verbatim::cuda {

/// Enqueues what a backward needs before it starts; `empty_rows`: some query tile has no addend.
template <class Element>
cudaError_t prepare_backward(const BackwardParams& p, bool empty_rows, cudaStream_t stream) {
  const int64_t row_heads = int64_t{p.sizes.batch} * p.sizes.q_heads;
  const int64_t rows_at_once = 256 / 32;
  const cudaError_t status = launch_blocks(
      row_delta<Element>, (row_heads * p.sizes.q_len + rows_at_once - 1) / rows_at_once, 256, 0,
      false, stream, p);
  if (status != cudaSuccess || !empty_rows) return status;
  return launch_blocks(zero_rows<Element>, row_heads * p.hand_off.max_q_tiles, 128, 0, false,
                       stream, p);
}

}  // namespace verbatim::cuda
