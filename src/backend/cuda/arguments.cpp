#include "backend/cuda/arguments.h"

#include <fmt/format.h>

#include <numbers>

#include "backend/backend.h"

namespace verbatim::cuda {

Scalars scalars_of(const Problem& problem, const RunOptions& run) {
  const double scale = problem.softmax_scale();
  return {.scale = static_cast<float>(scale),
          .scale_log2 = static_cast<float>(scale * std::numbers::log2e),
          .softcap = static_cast<float>(problem.softcap),
          .dropout = dropout_of(problem, run)};
}

TensorRef ref(const char* name, const TensorView& view) {
  constexpr int64_t kBytes = 16;
  const int64_t size = size_of(view.dtype);
  if (reinterpret_cast<uintptr_t>(view.data) % kBytes != 0) {
    throw Error(ErrorCode::unsupported, "cuda", "a tensor does not start at a multiple of 16 bytes",
                {name, fmt::format("{}", view.data), "an address divisible by 16", ""});
  }
  for (int d = 0; d < 3; ++d) {
    if (view.shape[d] > 1 && view.stride[d] * size % kBytes != 0) {
      throw Error(ErrorCode::unsupported, "cuda", "rows do not start at multiples of 16 bytes",
                  {fmt::format("{}.stride[{}]", name, d), fmt::to_string(view.stride[d]),
                   fmt::format("a multiple of {}", kBytes / size), "a dense copy"});
    }
  }
  return {view.data, view.stride[0], view.stride[1], view.stride[2], view.scales};
}

void refuse_kernel(const Device& device, std::string_view arithmetic, const Problem& problem,
                   const TileShape& tile, const std::string& expected) {
  throw Error(
      ErrorCode::unsupported, "cuda", "no kernel suits this problem on this device",
      {"problem",
       fmt::format("arithmetic {}, dtype {}, head dims {} and {}, tiles of {} x {}, compute "
                   "capability {}.{}",
                   arithmetic, to_string(problem.dtype), problem.head_dim, problem.head_dim_v,
                   tile.q, tile.kv, device.arch / 10, device.arch % 10),
       expected, expected});
}

void check_kernel(const Kernel& kernel, const Device& device, const Problem& problem,
                  const TileShape& tile) {
  const std::string_view arithmetic = kernel.arithmetic;
  const auto refuse = [&](const std::string& expected) {
    refuse_kernel(device, arithmetic, problem, tile, expected);
  };
  if (device.arch < kernel.arch || device.arch >= kernel.family) {
    const std::string least = fmt::format("{}.{}", kernel.arch / 10, kernel.arch % 10);
    refuse(kernel.family > 100 ? fmt::format("a GPU of compute capability {} or more", least)
           : arithmetic.starts_with("sm90.")
               ? "a GPU of compute capability 9.0, or arithmetic sm80"
               : fmt::format("a GPU of compute capability {}", least));
  }
  if (const std::string missing = kernel.lacks(problem, tile); !missing.empty()) refuse(missing);
  const int64_t bytes = kernel.shared_bytes(problem, tile);
  if (bytes > device.shared_bytes)
    refuse(fmt::format("at most {} bytes of shared memory per CTA, where {} takes {}",
                       device.shared_bytes, kernel.name, bytes));
}

}  // namespace verbatim::cuda
