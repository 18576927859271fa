// What host and kernel of the sm90 forward share.
#pragma once

#include <cuda.h>

#include "backend/cuda/device/params.h"

namespace verbatim::cuda::sm90::fwd {

inline constexpr int kRows = 64;      // query rows of a warpgroup
inline constexpr int kWarpRows = 16;  // query rows of a warp, whose output is copied at once
inline constexpr int kHalfKeys = 64;  // of a KV tile, one of which may be seen alone

/// Arguments of the kernel.
struct Params {
  CUtensorMap map_q, map_k, map_v, map_o;  // (dim, length, heads, batch)
  PlanView plan;
  int32_t* ticket;  // 0 at the start
  TensorRef o;
  float* lse;  // [batch, q_heads, q_len]
  Sizes sizes;
  float scale_log2;    // of the scores as they enter the softmax, times log2(e)
  float softcap_log2;  // 2 * log2(e) * scale / softcap: tanh's argument; 0: no softcap
  Dropout dropout;
};

}  // namespace verbatim::cuda::sm90::fwd
