// Where a backward keeps its sums in progress.
#pragma once

#include "backend/cuda/device/params.h"

namespace verbatim::cuda {

/// Parts of BackwardParams::workspace, in floats.
struct BackwardWorkspace {
  int64_t delta;   // [batch, q_heads, q_len]
  int64_t dq;      // [batch, q_heads, q_len, head_dim]: sums in progress; not of pieces of plans
  int64_t dk, dv;  // [batch, kv_heads, kv_len, head_dim (_v)], where there are `tile_sums`
  int64_t apart;   // from there to the second of each (Chain::apart)
  int64_t end;

  VERBATIM_HD static BackwardWorkspace of(const Sizes& s, int32_t tile_sums, bool piece) {
    const int64_t rows = int64_t{s.batch} * s.q_heads * s.q_len;
    const int64_t keys = int64_t{s.batch} * s.kv_heads * s.kv_len;
    BackwardWorkspace w{};
    w.dq = (rows + 63) / 64 * 64;  // keeps pairs of floats aligned
    w.dk = w.dq + (piece ? 0 : rows * s.head_dim);
    w.dv = w.dk + keys * s.head_dim;
    w.apart = keys * (s.head_dim + s.head_dim_v);
    w.end = w.dk + tile_sums * w.apart;
    return w;
  }
};

}  // namespace verbatim::cuda
