// What one call of a pass is given: tensors, and how to run.
#pragma once

#include <cstdint>
#include <optional>

#include "verbatim/tensor.h"
#include "verbatim/timeline.h"

namespace verbatim {

/// Tensors of a forward pass, in (batch, length, heads, dim) layout.
struct ForwardTensors {
  TensorView q;  // [batch, q_len, q_heads, head_dim]
  TensorView k;  // [batch, kv_len, kv_heads, head_dim]
  TensorView v;  // [batch, kv_len, kv_heads, head_dim_v]
  TensorView o;  // out [batch, q_len, q_heads, head_dim_v]; rows without a key: 0
  RowView lse;   // out [batch, q_heads, q_len], natural log; rows without a key: -inf
};

/// Tensors of a backward pass; o and lse are the forward's. It is that of FlashAttention-2 (Dao
/// 2023, algorithm 2), with dropout as the forward has it and S' the slope of softcap (1 without):
///   delta = rowsum(dO * O),  dP = dropout(dO V^T),  dS = P * (dP - delta) * S',
///   dQ = scale * dS K,  dK = scale * dS^T Q,  dV = dropout(P)^T dO;
/// dK and dV add up over the query heads of a group.
struct BackwardTensors {
  TensorView q, k, v, o, dout;  // shapes as in ForwardTensors; dout like o
  RowView lse;
  TensorView dq, dk, dv;  // out, shaped like q, k, v; written whole, whatever they held
};

/// How one call runs; none of it but the seed changes a bit.
struct RunOptions {
  int threads = 0;                 // CPU: at most so many, 0: all cores; a small call takes
                                   // fewer. Never changes the result
  Timeline* timeline = nullptr;    // filled with what each worker did when; stays empty where the
                                   // device's kernel cannot record
  void* stream = nullptr;          // CUDA: the cudaStream_t to run on; null = the default stream
  std::optional<uint64_t> seed{};  // of the dropout, when it is not the problem's
  const uint64_t* seed_at = nullptr;  // instead: its address on the device, read when the work
                                      // runs, so that a CUDA graph replays with what is there then
  double wait_limit = 0;  // CUDA: seconds that work waits for other work of the call, in a graph
                          // too, before it gives up (check()); 0: 10. More than one task may take
  void* workspace = nullptr;  // CUDA: what the call needs besides its tensors, on the device, at a
                              // multiple of 256, until its work ends; null: memory of our own
  int64_t workspace_bytes = 0;  // of it: Attention::workspace_bytes(pass, run) or more
};

}  // namespace verbatim
