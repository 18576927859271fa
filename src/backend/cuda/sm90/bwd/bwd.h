// The deterministic sm90 backward, for head dims 64 and 128 in bf16 and f16.
#pragma once

#include <cstdint>

#include "backend/cuda/registry.h"

namespace verbatim::cuda {

/// Bytes of BackwardParams::workspace for `row_tiles` query tiles (over batch and query heads).
int64_t sm90_backward_workspace_bytes(int64_t head_dim, int64_t row_tiles);

void sm90_backward(const BackwardParams& params, const LaunchContext& context);

}  // namespace verbatim::cuda
