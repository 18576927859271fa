// Sums of dK and dV of KV tiles whose parts other ranks may have made.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/cuda/device/params.h"
#include "verbatim/tensor.h"

namespace verbatim::cuda {

/// A KV tile whose sums end: its rows in memory, and AddSums::parts [first, first + parts).
struct SummedTile {
  int64_t row;
  int32_t head, rows, first, parts;
};

/// A result in 16 bits, and what its sums are multiplied with before they are rounded.
struct SummedOutput {
  TensorRef to;
  int32_t dim;
  float scale;
};

/// Tiles that are added by one launch.
struct AddSums {
  Dtype dtype;
  const SummedTile* tiles;  // on the device
  const int32_t* parts;     // blocks of each tile's parts, in the sequence to add them in
  int32_t count, most_rows;
  CarriedSums carried{};
  SummedOutput outputs[2]{};  // dK, dV
};

/// Adds, scales, rounds and writes. Throws Error(device).
void add_tile_sums(const AddSums& sums, cudaStream_t stream);

}  // namespace verbatim::cuda
