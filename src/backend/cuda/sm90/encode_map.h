// The driver's encoder of descriptors, without exceptions: libraries of kernels use it as well.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

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

/// Boxes of `rows` x 64 elements of one head, as make_tensor_map() has them.
inline MapShape map_shape(const TensorRef& tensor, int64_t batch, int64_t length, int64_t heads,
                          int64_t dim, int32_t rows) {
  // A dimension of one element never steps; its stride may be anything, but not in a descriptor.
  const auto bytes = [](int64_t stride, int64_t size) {
    return size == 1 ? cuuint64_t{16} : static_cast<cuuint64_t>(stride) * 2;
  };
  return {{static_cast<cuuint64_t>(dim), static_cast<cuuint64_t>(length),
           static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(batch)},
          {bytes(tensor.row, length), bytes(tensor.head, heads), bytes(tensor.batch, batch)},
          {64, static_cast<cuuint32_t>(rows), 1, 1}};
}

inline CUresult encode_map(MapEncoder encode, CUtensorMap* map, const MapShape& shape, void* data,
                           bool is_bf16) {
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  return encode(map, is_bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                4, data, shape.sizes, shape.strides, shape.box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

}  // namespace verbatim::cuda
