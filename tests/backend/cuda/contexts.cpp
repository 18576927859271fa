#include "backend/cuda/contexts.h"

#include <cudaTypedefs.h>

#include <stdexcept>
#include <string>

namespace verbatim::test {
namespace {

template <class Function>
Function find(const char* name, unsigned version) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  if (cudaGetDriverEntryPointByVersion(name, &entry, version, cudaEnableDefault, &found) !=
      cudaSuccess) {
    (void)cudaGetLastError();
    return nullptr;
  }
  return found == cudaDriverEntryPointSuccess ? reinterpret_cast<Function>(entry) : nullptr;
}

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  throw std::runtime_error(std::string(what) + " failed with " + std::to_string(result));
}

}  // namespace

GreenContext::GreenContext(int multiprocessors) {
  const auto resource_of = find<PFN_cuDeviceGetDevResource_v12040>("cuDeviceGetDevResource", 12040);
  const auto split =
      find<PFN_cuDevSmResourceSplitByCount_v12040>("cuDevSmResourceSplitByCount", 12040);
  const auto describe =
      find<PFN_cuDevResourceGenerateDesc_v12040>("cuDevResourceGenerateDesc", 12040);
  const auto create = find<PFN_cuGreenCtxCreate_v12040>("cuGreenCtxCreate", 12040);
  if (!resource_of || !split || !describe || !create) return;
  cudaFree(nullptr);  // makes the primary context
  CUdevResource all{}, part{}, rest{};
  check(resource_of(0, &all, CU_DEV_RESOURCE_TYPE_SM), "cuDeviceGetDevResource");
  unsigned groups = 1;
  check(split(&part, &groups, &all, &rest, 0, static_cast<unsigned>(multiprocessors)),
        "cuDevSmResourceSplitByCount");
  CUdevResourceDesc description = nullptr;
  check(describe(&description, &part, 1), "cuDevResourceGenerateDesc");
  check(create(&context_, description, 0, CU_GREEN_CTX_DEFAULT_STREAM), "cuGreenCtxCreate");
  multiprocessors_ = static_cast<int>(part.sm.smCount);
}

GreenContext::~GreenContext() {
  if (!context_) return;
  for (const cudaStream_t stream : streams_) {
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
  }
  const auto destroy = find<PFN_cuGreenCtxDestroy_v12040>("cuGreenCtxDestroy", 12040);
  if (destroy) destroy(context_);
}

cudaStream_t GreenContext::stream(int priority) {
  const auto create = find<PFN_cuGreenCtxStreamCreate_v12050>("cuGreenCtxStreamCreate", 12050);
  if (!create) throw std::runtime_error("the driver has no cuGreenCtxStreamCreate");
  CUstream stream = nullptr;
  check(create(&stream, context_, CU_STREAM_NON_BLOCKING, priority), "cuGreenCtxStreamCreate");
  streams_.push_back(stream);
  return stream;
}

}  // namespace verbatim::test
