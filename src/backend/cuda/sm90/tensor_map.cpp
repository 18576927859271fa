#include "backend/cuda/sm90/tensor_map.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "verbatim/error.h"

namespace verbatim::cuda::sm90 {
namespace {

// The library links the runtime only: the driver's function is looked up once.
decltype(&cuTensorMapEncodeTiled) encoder() {
  static const auto function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                                12000, cudaEnableDefault, &result);
    if (status != cudaSuccess || found == nullptr) {
      throw Error(ErrorCode::device, "cuda.tensor_map", "the driver has no cuTensorMapEncodeTiled");
    }
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  return function;
}

}  // namespace

CUtensorMap make_row_map(const TensorRef& tensor, Dtype dtype, int64_t head_dim, int64_t length,
                         int64_t heads, int64_t batch, int32_t rows) {
  constexpr cuuint64_t kElement = 2;
  // A dimension of one element never steps: any legal stride will do.
  const auto bytes = [](int64_t stride, int64_t size) {
    return size == 1 ? cuuint64_t{16} : static_cast<cuuint64_t>(stride) * kElement;
  };
  const auto size = [](int64_t value) { return static_cast<cuuint64_t>(value); };
  const cuuint64_t sizes[4] = {size(head_dim), size(length), size(heads), size(batch)};
  const cuuint64_t strides[3] = {bytes(tensor.row, length), bytes(tensor.head, heads),
                                 bytes(tensor.batch, batch)};
  const cuuint32_t box[4] = {64, static_cast<cuuint32_t>(rows), 1, 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult status = encoder()(
      &map,
      dtype == Dtype::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
      tensor.data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw Error(ErrorCode::device, "cuda.tensor_map",
                fmt::format("the driver refused a map (status {}) of sizes {} {} {} {}, strides of "
                            "{} {} {} bytes, {} rows a box",
                            static_cast<int>(status), sizes[0], sizes[1], sizes[2], sizes[3],
                            strides[0], strides[1], strides[2], rows));
  }
  return map;
}

}  // namespace verbatim::cuda::sm90
