#include "backend/cuda/sm90/tensor_map.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "verbatim/error.h"

namespace verbatim::cuda {
namespace {

/// The driver's encoder, looked up at run time so that nothing links against libcuda.
PFN_cuTensorMapEncodeTiled_v12000 find_encoder() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry,
                                                              12000, cudaEnableDefault, &found);
  if (status != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    throw Error(ErrorCode::device, "cuda.tensor_map", "the driver has no cuTensorMapEncodeTiled",
                {.argument = "driver",
                 .got = cudaGetErrorString(status),
                 .expected = "a driver for CUDA 12.0 or later",
                 .nearest = ""});
  }
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
}

}  // namespace

CUtensorMap make_tensor_map(const TensorRef& tensor, bool is_bf16, int64_t batch, int64_t length,
                            int64_t heads, int64_t dim, int32_t rows) {
  static const auto encode = find_encoder();
  // A dimension of one element never steps; its stride may be anything, but not in a descriptor.
  const auto bytes = [](int64_t stride, int64_t size) {
    return size == 1 ? cuuint64_t{16} : static_cast<cuuint64_t>(stride) * 2;
  };
  const cuuint64_t sizes[4] = {static_cast<cuuint64_t>(dim), static_cast<cuuint64_t>(length),
                               static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(batch)};
  const cuuint64_t strides[3] = {bytes(tensor.row, length), bytes(tensor.head, heads),
                                 bytes(tensor.batch, batch)};
  const cuuint32_t box[4] = {64, static_cast<cuuint32_t>(rows), 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, is_bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
             tensor.data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw Error(
        ErrorCode::device, "cuda.tensor_map",
        fmt::format("the driver refused a descriptor (code {}): data {}, shape [{}, {}, {}, "
                    "{}], byte strides [{}, {}, {}], box [{}, 64]",
                    static_cast<int>(result), tensor.data, batch, length, heads, dim, strides[2],
                    strides[0], strides[1], rows));
  }
  return map;
}

}  // namespace verbatim::cuda
