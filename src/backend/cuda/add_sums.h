// The sum of dK and dV of a KV tile whose parts other ranks may have made.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "backend/cuda/device/params.h"
#include "verbatim/tensor.h"

namespace verbatim::cuda {

/// Rows of a result in 16 bits, and what their sum is multiplied with before it is rounded.
struct SummedRows {
  uint16_t* data;
  int64_t row;  // stride
  int32_t dim;
  float scale;
};

/// A KV tile: blocks of its sums, and its dK and dV.
struct SummedTile {
  Dtype dtype;
  CarriedSums blocks;
  int32_t rows;
  SummedRows outputs[2];
};

/// Adds blocks `parts` in their sequence, scales, rounds and writes. Overwrites the first block
/// when there are many. Throws Error(device).
void add_tile_sums(const SummedTile& tile, const std::vector<int32_t>& parts, cudaStream_t stream);

}  // namespace verbatim::cuda
