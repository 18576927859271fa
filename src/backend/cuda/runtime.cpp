#include "backend/cuda/runtime.h"

#include <fmt/format.h>

#include <map>
#include <mutex>

namespace verbatim::cuda {
namespace {

int attribute(cudaDeviceAttr name, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, name, device), "cuda.device");
  return value;
}

Device open(int index) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  if (index < 0 || index >= count) {
    (void)cudaGetLastError();  // a missing driver must not spoil the next call
    throw Error(ErrorCode::device, "cuda.device", "there is no such device",
                {"device", fmt::format("cuda:{}", index),
                 count > 0 ? fmt::format("cuda:0 to cuda:{}", count - 1)
                           : "a machine with an NVIDIA GPU and its driver",
                 count > 0 ? "cuda:0" : "cpu"});
  }
  const DeviceGuard guard(index);
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
  check(cudaStreamCreateWithFlags(&device.uploads, cudaStreamNonBlocking), "cuda.device");
  return device;
}

}  // namespace

DeviceGuard::DeviceGuard(int device) : device_(device) {
  check(cudaGetDevice(&previous_), "cuda.device");
  if (device_ != previous_) check(cudaSetDevice(device_), "cuda.device");
}
DeviceGuard::~DeviceGuard() {
  if (device_ != previous_) cudaSetDevice(previous_);
}

const Device& device(int index) {
  static std::mutex mutex;
  static std::map<int, Device> devices;
  const std::lock_guard lock(mutex);
  auto found = devices.find(index);
  if (found == devices.end()) found = devices.emplace(index, open(index)).first;
  return found->second;
}

Scratch::Scratch(const Device& device, int64_t bytes, cudaStream_t stream) : stream_(stream) {
  if (bytes > 0) {
    check(cudaMallocFromPoolAsync(&data_, static_cast<size_t>(bytes), device.pool, stream),
          "cuda.workspace");
  }
}
Scratch::~Scratch() {
  if (data_) cudaFreeAsync(data_, stream_);
}

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "cuda.stream");
  return status != cudaStreamCaptureStatusNone;
}

RelaxedCapture::RelaxedCapture() {
  check(cudaThreadExchangeStreamCaptureMode(&mode_), "cuda.capture");
}
RelaxedCapture::~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }

}  // namespace verbatim::cuda
