#include "backend/cuda/runtime.h"

#include <fmt/format.h>

#include <map>
#include <memory>
#include <mutex>

#include "backend/backend.h"
#include "backend/cuda/driver.h"
#include "backend/cuda/report.h"

namespace verbatim::cuda {
namespace {

int attribute(cudaDeviceAttr name, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, name, device), "cuda.device");
  return value;
}

Device open(int index) {
  const int count = cuda_devices();
  if (index < 0 || index >= count) {
    throw Error(ErrorCode::device, "cuda.device", "there is no such device",
                {"device", fmt::format("cuda:{}", index),
                 count > 0 ? fmt::format("cuda:0 to cuda:{}", count - 1)
                           : "a machine with an NVIDIA GPU and its driver",
                 count > 0 ? "cuda:0" : "cpu"});
  }
  const PrimaryContext own(index);
  const RelaxedCapture relaxed;
  Device device{};
  device.index = index;
  device.arch = 10 * attribute(cudaDevAttrComputeCapabilityMajor, index) +
                attribute(cudaDevAttrComputeCapabilityMinor, index);
  device.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, index);
  device.shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index);

  cudaMemPoolProps props{};
  props.allocType = cudaMemAllocationTypePinned;
  props.location.type = cudaMemLocationTypeDevice;
  props.location.id = index;
  for (cudaMemPool_t* pool : {&device.pool, &device.plans}) {
    check(cudaMemPoolCreate(pool, &props), "cuda.device");
    uint64_t keep = UINT64_MAX;
    check(cudaMemPoolSetAttribute(*pool, cudaMemPoolAttrReleaseThreshold, &keep), "cuda.device");
  }
  for (cudaStream_t* stream : {&device.uploads, &device.writes})
    check(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "cuda.device");
  device.report = make_wait_report();
  device.lists = make_list_report();
  return device;
}

}  // namespace

DeviceGuard::DeviceGuard(int device) {
  int current = 0;
  check(cudaGetDevice(&current), "cuda.device");
  if (device != current) own_ = std::make_unique<PrimaryContext>(device);
}
DeviceGuard::~DeviceGuard() = default;

const Device& device(int index) {
  // Never destroyed: what is kept on a device may outlive static objects.
  static auto& mutex = *new std::mutex;
  static auto& devices = *new std::map<int, Device>;
  const std::lock_guard lock(mutex);
  auto found = devices.find(index);
  if (found == devices.end()) found = devices.emplace(index, open(index)).first;
  return found->second;
}

Scratch::Scratch(const Device& device, int64_t bytes, cudaStream_t stream) : stream_(stream) {
  if (bytes > 0) {
    check(cudaMallocFromPoolAsync(&data_, bytes, device.pool, stream), "cuda.workspace");
  }
}
Scratch::~Scratch() {
  if (data_) cudaFreeAsync(data_, stream_);
}

cudaGraph_t graph_of(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
  check(cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph), "cuda.stream");
  if (status == cudaStreamCaptureStatusInvalidated) {
    check(cudaErrorStreamCaptureInvalidated, "cuda.stream");
  }
  return status == cudaStreamCaptureStatusActive ? graph : nullptr;
}

RelaxedCapture::RelaxedCapture() {
  check(cudaThreadExchangeStreamCaptureMode(&mode_), "cuda.capture");
}
RelaxedCapture::~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }

}  // namespace verbatim::cuda

namespace verbatim {

int32_t cuda_devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  (void)cudaGetLastError();  // a missing driver must not spoil the next call
  return 0;
}

}  // namespace verbatim
