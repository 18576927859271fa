// Sizes of the sm80 forward: each warp of a CTA keeps 16 rows of a query tile, their softmax and O
// in registers; the CTA streams the KV tiles of its visits in blocks of kBlockKv keys.
#pragma once

#include <cstdint>

#include "backend/cuda/device/mma.cuh"
#include "backend/cuda/device/params.h"

namespace verbatim::cuda::sm80 {

/// kHeadDim: head dim of Q and K, kHeadDimV: of V and O, both padded with zeros. kTileQ: rows of a
/// query tile.
template <class Element_, int kHeadDim_, int kHeadDimV_, int kTileQ_>
struct Forward {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_, kHeadDimV = kHeadDimV_;
  static constexpr int kTileQ = kTileQ_;
  static constexpr int kBlockKv = kHeadDimV > 128 ? 32 : 64;  // more would spill
  static constexpr int kThreads = kTileQ * 2;
  static constexpr int kScoreColumns = kBlockKv / 8;
  static constexpr int kOutColumns = kHeadDimV / 8;

  struct SharedStorage {
    SharedTile<Element, kTileQ, kHeadDim> q;
    SharedTile<Element, kBlockKv, kHeadDim> k;
    SharedTile<Element, kBlockKv, kHeadDimV> v;
    int32_t ticket;
  };
  static_assert(sizeof(SharedStorage) <= (kHeadDimV > 128 ? 160 : 99) * 1024);
};

/// Parts of ForwardParams::workspace, in floats; only split rows need it.
struct ForwardWorkspace {
  int64_t maximum, sum;  // [batch, q_heads, q_len]: of the online softmax, base 2
  int64_t o;             // [batch, q_heads, q_len, head_dim_v], not yet divided by the sum
  int64_t end;

  VERBATIM_HD static ForwardWorkspace of(const Sizes& s) {
    const int64_t rows = (int64_t{s.batch} * s.q_heads * s.q_len + 63) / 64 * 64;
    return {0, rows, 2 * rows, 2 * rows + rows * s.head_dim_v};
  }
};

}  // namespace verbatim::cuda::sm80
