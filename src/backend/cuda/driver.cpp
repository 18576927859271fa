#include "backend/cuda/driver.h"

#include <cudaTypedefs.h>
#include <fmt/format.h>

#include <algorithm>

namespace verbatim::cuda {
namespace {

/// Null where the driver is older than the function.
template <class Function>
Function find(const char* name, unsigned version) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion(name, &entry, version, cudaEnableDefault, &found);
  if (status != cudaSuccess) (void)cudaGetLastError();
  const bool there = status == cudaSuccess && found == cudaDriverEntryPointSuccess;
  return there ? reinterpret_cast<Function>(entry) : nullptr;
}

void check_driver(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  throw Error(ErrorCode::device, "cuda.stream",
              fmt::format("the driver does not tell the {} of a stream (code {})", what,
                          static_cast<int>(result)));
}

/// Of a wait or a write: null where there is none.
template <class Function>
void enqueue(Function function, cudaStream_t stream, CUdeviceptr counter, uint32_t number,
             unsigned flags) {
  const CUresult result =
      function ? function(stream, counter, number, flags) : CUDA_ERROR_NOT_SUPPORTED;
  if (result == CUDA_SUCCESS) return;
  const bool lacks = result == CUDA_ERROR_NOT_SUPPORTED;
  throw Error(lacks ? ErrorCode::unsupported : ErrorCode::device, "cuda.stream",
              fmt::format("a stream cannot wait for a value in memory (code {})",
                          static_cast<int>(result)));
}

}  // namespace

int32_t multiprocessors_of(const Device& device, cudaStream_t stream) {
  static const auto contexts = find<PFN_cuStreamGetCtx_v12050>("cuStreamGetCtx", 12050);
  static const auto of_context = find<PFN_cuCtxGetDevResource_v12040>("cuCtxGetDevResource", 12040);
  static const auto of_green =
      find<PFN_cuGreenCtxGetDevResource_v12040>("cuGreenCtxGetDevResource", 12040);
  if (!contexts || !of_context || !of_green) return device.multiprocessors;
  CUcontext context = nullptr;
  CUgreenCtx green = nullptr;
  check_driver(contexts(stream, &context, &green), "context");
  CUdevResource resource{};
  if (green) {
    check_driver(of_green(green, &resource, CU_DEV_RESOURCE_TYPE_SM), "multiprocessors");
  } else if (of_context(context, &resource, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS) {
    return device.multiprocessors;  // no context of parts
  }
  return std::min(device.multiprocessors, static_cast<int32_t>(resource.sm.smCount));
}

void wait_for_value(cudaStream_t stream, CUdeviceptr counter, uint32_t number) {
  static const auto wait = find<PFN_cuStreamWaitValue32_v11070>("cuStreamWaitValue32", 11070);
  enqueue(wait, stream, counter, number, CU_STREAM_WAIT_VALUE_GEQ);
}

void write_value(cudaStream_t stream, CUdeviceptr counter, uint32_t number) {
  static const auto write = find<PFN_cuStreamWriteValue32_v11070>("cuStreamWriteValue32", 11070);
  enqueue(write, stream, counter, number, CU_STREAM_WRITE_VALUE_DEFAULT);
}

CUcontext current_context() {
  static const auto get = find<PFN_cuCtxGetCurrent_v4000>("cuCtxGetCurrent", 4000);
  CUcontext context = nullptr;
  if (get) get(&context);
  return context;
}

void set_current_context(CUcontext context) {
  static const auto set = find<PFN_cuCtxSetCurrent_v4000>("cuCtxSetCurrent", 4000);
  if (set) set(context);
}

PrimaryContext::PrimaryContext(int device) : context_(current_context()) {
  check(cudaGetDevice(&previous_), "cuda.device");
  check(cudaSetDevice(device), "cuda.device");
}

PrimaryContext::~PrimaryContext() {
  cudaSetDevice(previous_);
  if (context_ && current_context() != context_) set_current_context(context_);
}

}  // namespace verbatim::cuda
