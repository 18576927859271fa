// Devices, scratch memory and stream capture: what the executor needs of the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "backend/cuda/device/params.h"
#include "backend/cuda/status.h"

namespace verbatim::cuda {

class PrimaryContext;
struct ListReport;

/// Makes `device` current in this thread, and at the end what was current before. When the device
/// is current already, nothing is set: cudaSetDevice would leave the caller's context for the
/// device's own.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  std::unique_ptr<PrimaryContext> own_;  // of another device than was current
};

/// What is known of a device; found once per process.
struct Device {
  int index;
  int arch;  // compute capability: 90 for 9.0
  int multiprocessors;
  int64_t shared_bytes;  // shared memory that one CTA can have
  cudaMemPool_t pool;    // keeps what was freed: allocation costs microseconds and never waits
  cudaMemPool_t plans;   // the same for plans, used on `uploads` only, so never tied to a launch
  cudaStream_t uploads;  // of plans
  cudaStream_t writes;   // by kernels, to plans: no copy waits for these
  WaitReport* report;    // of waits that expired in any of its kernels
  ListReport* lists;     // of lists on it with a wrong entry
};
/// Throws Error(device) when there is no device `index`.
const Device& device(int index);

/// Stream-ordered memory, 256-byte aligned: usable by work enqueued between here and the end of
/// the object's life, whenever that runs; also inside a stream capture.
class Scratch {
 public:
  Scratch(const Device& device, int64_t bytes, cudaStream_t stream);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  cudaStream_t stream_;
};

/// The graph that `stream` is being captured into, or null.
cudaGraph_t graph_of(cudaStream_t stream);

/// Lets this thread allocate and copy on its own streams while another stream is being captured.
class RelaxedCapture {
 public:
  RelaxedCapture();
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace verbatim::cuda
