// How large a launch may be: what the indices of kernels and grids hold. Nothing larger is started.
#pragma once

#include <cstdint>

#include "verbatim/problem.h"

namespace verbatim::cuda {

/// Of one kernel, besides those that all have.
struct Limits {
  int64_t batch = INT32_MAX, q_heads = INT32_MAX;
};

/// Of a plan: most tiles of any head, and tasks of all heads.
struct PlanCounts {
  int64_t q_tiles, kv_tiles, tasks;
};

/// Throws Error(unsupported) naming the argument that is too large. Kernels count KV heads, row
/// tiles (batch * q_heads * q_tiles), KV tiles (batch * kv_heads * kv_tiles) and tasks in 32 bits,
/// and start a CTA for every eight rows.
void check_limits(const Limits& limits, const Problem& problem, const PlanCounts& counts);

}  // namespace verbatim::cuda
