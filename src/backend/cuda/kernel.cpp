#include "backend/cuda/kernel.h"

namespace verbatim::cuda {

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
