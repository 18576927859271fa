// What host and kernel of the sm90 forward share: tile shapes and arguments.
#pragma once

#include <cuda.h>

#include "backend/cuda/device/params.h"

namespace verbatim::cuda::sm90 {

inline constexpr int kWarpRows = 16;  // query rows of a warp, whose output is copied at once

// Tile shapes. Tiles in flight: `q_stages` of Q, `k_stages` of K, `v_stages` of V. Every consumer
// warpgroup owns 64 of the tile_q rows.
struct Hd64 {
  static constexpr int head_dim = 64, tile_q = 192, tile_kv = 128;
  static constexpr int q_stages = 2, k_stages = 4, v_stages = 4;
};
struct Hd128 {
  static constexpr int head_dim = 128, tile_q = 128, tile_kv = 128;
  static constexpr int q_stages = 2, k_stages = 2, v_stages = 3;
};

/// Arguments of the kernel.
struct FwdArgs {
  CUtensorMap q_map, k_map, v_map, o_map;  // (dim, length, heads, batch)
  PlanView plan;
  int32_t* ticket;  // 0 at the start
  TensorRef o;
  float* lse;  // [batch, q_heads, q_len]
  Sizes sizes;
  float scale_log2;    // of the scores as they enter the softmax, times log2(e)
  float softcap_log2;  // 2 * log2(e) * scale / softcap: tanh's argument; 0: no softcap
  Dropout dropout;
};

}  // namespace verbatim::cuda::sm90
