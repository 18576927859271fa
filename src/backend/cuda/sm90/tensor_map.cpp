#include "backend/cuda/sm90/tensor_map.h"

#include <fmt/format.h>

#include "backend/cuda/sm90/encode_map.h"
#include "verbatim/error.h"

namespace verbatim::cuda {
namespace {

MapEncoder encoder() {
  cudaError_t status{};
  if (const MapEncoder found = find_map_encoder(&status)) return found;
  throw Error(ErrorCode::device, "cuda.tensor_map", "the driver has no cuTensorMapEncodeTiled",
              {.argument = "driver",
               .got = cudaGetErrorString(status),
               .expected = "a driver for CUDA 12.0 or later",
               .nearest = ""});
}

}  // namespace

CUtensorMap make_tensor_map(const TensorRef& tensor, bool is_bf16, int64_t batch, int64_t length,
                            int64_t heads, int64_t dim, int32_t rows) {
  static const MapEncoder encode = encoder();
  const MapShape shape = map_shape(tensor, batch, length, heads, dim, rows);
  CUtensorMap map;
  const CUresult result =
      encode_map(encode, &map, shape, tensor.data,
                 is_bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
  if (result != CUDA_SUCCESS) {
    throw Error(
        ErrorCode::device, "cuda.tensor_map",
        fmt::format("the driver refused a descriptor (code {}): data {}, shape [{}, {}, {}, "
                    "{}], byte strides [{}, {}, {}], box [{}, 64]",
                    static_cast<int>(result), tensor.data, batch, length, heads, dim,
                    shape.strides[2], shape.strides[0], shape.strides[1], rows));
  }
  return map;
}

}  // namespace verbatim::cuda
