// Stands in for the CUDA backend where there was no CUDA compiler.
#include "backend/backend.h"
#include "backend/peers.h"
#include "backend/selected.h"

namespace verbatim {
namespace {

[[noreturn]] void refuse(int index) {
  throw Error(ErrorCode::unsupported, "backend", "this build has no CUDA backend",
              {"device", "cuda:" + std::to_string(index), "cpu", "cpu"});
}

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(int index, const std::vector<std::string>&) {
  refuse(index);
}
std::unique_ptr<PeerDevice> make_cuda_peer_device(int index) { refuse(index); }
std::unique_ptr<SelectedKernel> make_cuda_selected(int index, const std::string&) { refuse(index); }

std::optional<std::string> index_of_library(const std::string&) { return {}; }

int32_t cuda_devices() { return 0; }

}  // namespace verbatim
