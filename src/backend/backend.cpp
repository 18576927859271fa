#include "backend/backend.h"

#include <charconv>
#include <string>

namespace verbatim {

int device_index(std::string_view device) {
  if (device == "cpu") return -1;
  if (device == "cuda") return 0;
  constexpr std::string_view kPrefix = "cuda:";
  if (device.substr(0, kPrefix.size()) == kPrefix) {
    const std::string_view digits = device.substr(kPrefix.size());
    int index = -1;
    const auto [end, error] = std::from_chars(digits.begin(), digits.end(), index);
    if (error == std::errc() && end == digits.end() && index >= 0) return index;
  }
  throw Error(ErrorCode::invalid_argument, "device", "unknown device",
              {.argument = "device",
               .got = "'" + std::string(device) + "'",
               .expected = "cpu, cuda or cuda:N",
               .nearest = device.substr(0, 4) == "cuda" ? "cuda:0" : "cpu"});
}

std::unique_ptr<Backend> make_backend(std::string_view device) {
  const int index = device_index(device);
  return index < 0 ? make_cpu_backend() : make_cuda_backend(index);
}

void complete(PlanOptions& options, const Backend& backend) {
  if (options.arithmetic.empty()) options.arithmetic = backend.arithmetic_of(options.pass);
  const TileShape only = backend.own_tile(options.pass);
  if (options.tile.q == 0) options.tile.q = only.q;
  if (options.tile.kv == 0) options.tile.kv = only.kv;
}

std::unique_ptr<Backend> make_backend(std::string_view device,
                                      const std::vector<std::string>& kernels, Level level) {
  if (kernels.empty()) return make_backend(device);
  const int index = device_index(device);
  return index < 0 ? make_tl_backend(kernels, level) : make_cuda_backend(index, kernels);
}

}  // namespace verbatim
