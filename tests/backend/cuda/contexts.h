// Green contexts: parts of a GPU's multiprocessors.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <vector>

namespace verbatim::test {

/// A green context of at least so many multiprocessors of device 0. Not made where the driver has
/// none: see made().
class GreenContext {
 public:
  explicit GreenContext(int multiprocessors);
  ~GreenContext();
  GreenContext(const GreenContext&) = delete;
  GreenContext& operator=(const GreenContext&) = delete;

  bool made() const { return context_ != nullptr; }
  int multiprocessors() const { return multiprocessors_; }
  /// A stream of it, which goes with it.
  cudaStream_t stream(int priority = 0);

 private:
  CUgreenCtx context_ = nullptr;
  int multiprocessors_ = 0;
  std::vector<cudaStream_t> streams_;
};

}  // namespace verbatim::test
