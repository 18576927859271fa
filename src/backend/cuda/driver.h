// What only the driver's interface tells: contexts and their multiprocessors. Its functions are
// looked up at run time, so that nothing links against libcuda.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/cuda/runtime.h"

namespace verbatim::cuda {

/// Multiprocessors of `device` that kernels on `stream` may run on: those of the green context that
/// the stream belongs to (the default stream: that is current), of the MPS client's share, or all.
/// Asks the driver, in less than a microsecond: nothing may be remembered by a stream's handle,
/// which others get when it is destroyed. The device is current.
int32_t multiprocessors_of(const Device& device, cudaStream_t stream);

/// What is given to `stream` from now on starts when the counter at this address of the device, of
/// 32 bits, has reached `number`, in a circle of 2^32. Holds no multiprocessor. Throws
/// Error(unsupported) where streams cannot wait so.
void wait_for_value(cudaStream_t stream, CUdeviceptr counter, uint32_t number);
/// The counter gets the number behind the work on `stream`, and after what that wrote is seen.
void write_value(cudaStream_t stream, CUdeviceptr counter, uint32_t number);

/// The context current to this thread, or null.
CUcontext current_context();
void set_current_context(CUcontext context);

/// Makes the own context of a device current, and at the end what was current before: what is made
/// in between must not go when the caller's green context does.
class PrimaryContext {
 public:
  explicit PrimaryContext(int device);
  ~PrimaryContext();
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

 private:
  int previous_ = 0;
  CUcontext context_;
};

}  // namespace verbatim::cuda
