// Arguments of the sm90 backward kernels.
#pragma once

#include <cuda.h>
#include <vector_types.h>

#include <cstdint>

#include "backend/cuda/device/params.h"
#include "backend/cuda/device/record.h"

namespace verbatim::cuda::sm90::bwd {

inline constexpr int kStatBytes = 16;  // of a row's statistics, at most: stats.cuh

/// Where the kernels of one backward meet. A row tile is one query tile of one query head:
/// (b * q_heads + h) * max_q_tiles + q_tile.
struct Workspace {
  void* stats;  // [row tiles][tile_q] of Config::Stat
  // [live_heads * live_queries * max_q_tiles][tile_q * head dim of the instance] in fragment
  // order: KV head h has the places that h - live_heads had, and query head i of it that of i -
  // live_queries.
  float* dq_sum;
  // Sums of dK of KV tiles that several chains share, in fragment order (those of dV lie in the
  // results: key_sums.cuh): [key tiles][128 * head dim of the instance]; a key tile is
  // (b * kv_heads + kv_head) * max_kv_tiles + kv_tile.
  float4* dk_sum;
  // What pieces of a chain pass on where that lies apart from these sums: [key tiles][128 * (head
  // dim + head dim of V)], in rows of the problem.
  float* apart;
  int32_t* key_turns;  // [key tiles][2]: addends that are complete, of each warpgroup's half
};

/// The cap on scores. All 0: none.
struct Softcap {
  float argument;  // of tanh_from_log2, per unit of Q K^T: 2 log2(e) scale / softcap
  float cap;       // log2(e) softcap: scores are in powers of two
  float inverse;   // 1 / cap
};

/// Of the main kernel, passed by value.
struct Params {
  CUtensorMap map_q, map_dout, map_k, map_v;
  BackwardParams common;
  Workspace workspace;
  float unit;          // of LSE / scale in the statistics
  int32_t live_heads;  // KV heads that have places for their sums, and query heads of each
  int32_t live_queries;
  // Tickets that wait for each other lie closer together than this. 1: none waits for a later one.
  int32_t together;
  bool shares_sums;   // these are fewer than all
  bool ordered;       // false: the ablation without turns, on a zeroed dq_sum
  RecordView record;  // of the kernel with Recorder
  Softcap softcap;    // of the kernel with softcap and dropout
};

}  // namespace verbatim::cuda::sm90::bwd
