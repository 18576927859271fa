#include "backend/cuda/registry.h"

#include "backend/cuda/sm80/bwd/bwd.h"
#include "backend/cuda/sm80/fwd/fwd.h"
#include "backend/cuda/sm90/fwd/fwd.h"

namespace verbatim::cuda {

std::span<const Kernel> kernels() {
  static const Kernel table[] = {sm90::forward_kernel(), sm80::forward_kernel(),
                                 sm80::backward_kernel()};
  return table;
}

Sizes sizes_of(const Problem& problem) {
  const auto narrow = [](int64_t value) { return static_cast<int32_t>(value); };
  return {.batch = narrow(problem.batch),
          .q_heads = narrow(problem.q_heads),
          .kv_heads = narrow(problem.kv_heads),
          .q_len = narrow(problem.q_len),
          .kv_len = narrow(problem.kv_len),
          .head_dim = narrow(problem.head_dim),
          .head_dim_v = narrow(problem.head_dim_v)};
}

}  // namespace verbatim::cuda
