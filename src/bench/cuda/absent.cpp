// Stands in for the CUDA device where there was no CUDA compiler.
#include "backend/backend.h"
#include "bench/device.h"

namespace verbatim::bench {

std::unique_ptr<Device> make_cuda_device(int index) {
  make_cuda_backend(index);  // throws what is missing
  return nullptr;
}

}  // namespace verbatim::bench
