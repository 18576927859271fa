// Tensors in host memory, copied to the device for one call and back.
#pragma once

#include <memory>
#include <vector>

#include "backend/cuda/runtime.h"
#include "verbatim/tensor.h"

namespace verbatim::cuda {

/// Whether memory is the host's: throws Error(invalid_argument) when it belongs to another device.
bool on_host(const void* data, const Device& device);

/// Views of one call's tensors as kernels can use them. Device tensors pass through untouched, and
/// the call stays asynchronous; host tensors get a copy on the device, gaps included.
class Staging {
 public:
  Staging(const Device& device, cudaStream_t stream) : device_(device), stream_(stream) {}
  ~Staging();  // waits for copies that an error has left under way: their host memory is the
               // caller's
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  TensorView input(const TensorView& view);
  TensorView output(const TensorView& view);
  RowView input(const RowView& rows);
  RowView output(const RowView& rows);
  /// Copies outputs back to the host and waits for all copies. False when there were none.
  bool finish();

 private:
  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
  };
  void* stage(void* data, int64_t bytes, bool is_output);

  const Device& device_;
  cudaStream_t stream_;
  std::vector<std::unique_ptr<Scratch>> memory_;
  std::vector<Copy> outputs_;
  bool pending_ = false;  // copies may be under way
};

}  // namespace verbatim::cuda
