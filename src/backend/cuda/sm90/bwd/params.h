// Arguments of the sm90 backward kernels.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "backend/cuda/device/params.h"

namespace verbatim::cuda::sm90_bwd {

/// Where the kernels of one backward meet. A row tile is one query tile of one query head:
/// (b * q_heads + h) * max_q_tiles + q_tile.
struct Workspace {
  float* stats;    // [row tiles][2][tile_q]: LSE * log2(e) (+inf: no such row), then delta
  float* dq_sum;   // [row tiles][tile_q * head_dim] in fragment order
  int32_t* turns;  // [row tiles][2]: addends complete of each half of the sum, zeroed in-stream
};

/// Of the main kernel, passed by value.
struct Params {
  CUtensorMap map_q, map_dout, map_k, map_v;
  BackwardParams common;
  Workspace workspace;
  bool ordered;  // false: the ablation without turns, on a zeroed dq_sum
};

}  // namespace verbatim::cuda::sm90_bwd
