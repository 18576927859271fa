// Descriptors of the copy engine for (batch, length, heads, dim) tensors.
#pragma once

#include <cuda.h>

#include "backend/cuda/device/params.h"

namespace verbatim::cuda {

/// Boxes of `rows` x 64 elements of one head, swizzled over 128 bytes; coordinates are
/// (dim, length, head, batch), rows beyond the length read 0. Throws Error(device) with all fields
/// when the driver refuses.
CUtensorMap make_tensor_map(const TensorRef& tensor, bool is_bf16, int64_t batch, int64_t length,
                            int64_t heads, int64_t dim, int32_t rows);

}  // namespace verbatim::cuda
