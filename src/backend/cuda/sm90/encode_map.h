// The driver's encoder of descriptors, without exceptions: libraries of kernels use it as well.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>

#include "backend/cuda/device/params.h"

namespace verbatim::cuda {

using MapEncoder = decltype(&cuTensorMapEncodeTiled);

/// Looked up at run time, so that nothing links against libcuda. Null: the driver has none.
inline MapEncoder find_map_encoder(cudaError_t* status) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  *status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                             cudaEnableDefault, &found);
  const bool usable = *status == cudaSuccess && found == cudaDriverEntryPointSuccess;
  return usable ? reinterpret_cast<MapEncoder>(entry) : nullptr;
}

/// What a descriptor is made from.
struct MapShape {
  cuuint64_t sizes[4];    // (dim, length, heads, batch)
  cuuint64_t strides[3];  // bytes of all but dim
  cuuint32_t box[4];
};

/// Boxes of one head: `rows` rows of 64 elements, as make_tensor_map() has them; of bytes, 128 or
/// all that a head has.
inline MapShape map_shape(const TensorRef& tensor, int64_t batch, int64_t length, int64_t heads,
                          int64_t dim, int32_t rows, int32_t element_bytes = 2) {
  // A dimension of one element never steps; its stride may be anything, but not in a descriptor.
  const auto bytes = [&](int64_t stride, int64_t size) {
    return size == 1 ? cuuint64_t{16} : static_cast<cuuint64_t>(stride * element_bytes);
  };
  return {{static_cast<cuuint64_t>(dim), static_cast<cuuint64_t>(length),
           static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(batch)},
          {bytes(tensor.row, length), bytes(tensor.head, heads), bytes(tensor.batch, batch)},
          {element_bytes == 2 ? 64 : static_cast<cuuint32_t>(std::min(dim, int64_t{128})),
           static_cast<cuuint32_t>(rows), 1, 1}};
}

/// Swizzled over the bytes of a box's row: 128, or 64.
inline CUresult encode_map(MapEncoder encode, CUtensorMap* map, const MapShape& shape, void* data,
                           CUtensorMapDataType type) {
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const bool narrow = type == CU_TENSOR_MAP_DATA_TYPE_UINT8 && shape.box[0] == 64;
  return encode(map, type, 4, data, shape.sizes, shape.strides, shape.box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE,
                narrow ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

}  // namespace verbatim::cuda
