// Stands in for the CUDA backend where there was no CUDA compiler.
#include "backend/backend.h"

namespace verbatim {

std::unique_ptr<Backend> make_cuda_backend(int index, const std::vector<std::string>&) {
  throw Error(ErrorCode::unsupported, "backend", "this build has no CUDA backend",
              {"device", "cuda:" + std::to_string(index), "cpu", "cpu"});
}

int32_t cuda_devices() { return 0; }

}  // namespace verbatim
