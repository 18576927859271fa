// Arguments of the sm90 backward kernels.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "backend/cuda/device/plan_view.h"

namespace verbatim::cuda::sm90_bwd {

/// A strided 16-bit tensor in (batch, length, heads, dim) layout; strides in elements.
struct TensorArg {
  void* data;
  int64_t batch, length, heads;  // strides
};

/// Of the main kernel, passed by value.
struct Params {
  CUtensorMap map_q, map_dout, map_k, map_v;
  PlanView plan;
  TensorArg dk, dv;
  const float* stats;   // [rows of tiles][2][tile_q]: LSE * log2(e) (+inf: no such row), delta
  float* dq_sum;        // [rows of tiles][tile_q * head_dim], fragment order
  int32_t* flags;       // [rows of tiles][2]: addends that are complete, zeroed by the launch
  int32_t* ticket;      // next task of plan.placed, zeroed by the launch
  int32_t* error;       // [4]: set to {1, row, addend, got} when a wait expires
  int64_t spin_cycles;  // cap of every wait on a flag
  int32_t q_heads;
  int32_t max_q_tiles;         // over the plan's orders: stride of a head's row tiles
  int32_t ordered;             // 0: the ablation without waits and signals (dq_sum zeroed before)
  float scale;                 // softmax scale
  float scale_log2;            // scale * log2(e), or log2(e) under softcap
  float softcap;               // 0: none
  uint32_t dropout_threshold;  // draws below it are dropped; 0: none
  float dropout_scale;         // of the kept elements
  uint64_t seed;
};

/// Of the kernels before and after: delta and statistics, and the conversion of dQ.
struct EdgeParams {
  PlanView plan;
  TensorArg o, dout, dq;
  const float* lse;  // [batch, q_heads, q_len], natural log
  float* stats;
  const float* dq_sum;
  int32_t q_heads;
  int32_t q_len;
  int32_t max_q_tiles;
  float scale;
};

}  // namespace verbatim::cuda::sm90_bwd
