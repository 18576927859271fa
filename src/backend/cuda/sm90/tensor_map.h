// Tensor maps: how the TMA unit sees a (batch, length, heads, dim) tensor.
#pragma once

#include <cuda.h>

#include "backend/cuda/device/params.h"
#include "verbatim/tensor.h"

namespace verbatim::cuda::sm90 {

/// Boxes of `rows` rows of one head by 64 elements, 128-byte swizzled; rows beyond `length` read as
/// 0. Coordinates are (dim, row, head, batch). `dtype` is bf16 or f16. Throws Error(device) when
/// the driver refuses the map.
CUtensorMap make_row_map(const TensorRef& tensor, Dtype dtype, int64_t head_dim, int64_t length,
                         int64_t heads, int64_t batch, int32_t rows);

}  // namespace verbatim::cuda::sm90
