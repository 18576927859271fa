// Sizes of the sm80 backward: one CTA of 8 warps keeps a KV tile, with dK and dV in registers, and
// streams the query tiles of its visits in blocks of kBlockQ rows.
#pragma once

#include <cstdint>

#include "backend/cuda/device/mma.cuh"
#include "backend/cuda/device/workspace.h"

namespace verbatim::cuda::sm80 {

/// kHeadDim: head dim of Q and K, kHeadDimV: of V and O, both padded with zeros. kTileKv: keys of a
/// KV tile.
template <class Element_, int kHeadDim_, int kHeadDimV_, int kTileKv_>
struct Backward {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_, kHeadDimV = kHeadDimV_;
  static constexpr int kTileKv = kTileKv_;
  // Fits 99 KiB up to V of 128.
  static constexpr int kBlockQ = kHeadDim == 64 ? 64 : kHeadDim <= 128 || kTileKv <= 64 ? 32 : 16;
  static constexpr int kThreads = 256;

  // S, dP and dQ: warps along queries times warps along keys (dQ: head dim).
  static constexpr int kWarpsQ = kBlockQ / 16, kWarpsK = 8 / kWarpsQ;
  static constexpr int kScoreColumns = kTileKv / kWarpsK / 8;
  static constexpr int kDqColumns = kHeadDim / kWarpsK / 8;
  // dK and dV: four warps along keys, two along the head dim.
  static constexpr int kKeyRows = kTileKv / 4 / 16;
  static constexpr int kDkColumns = kHeadDim / 2 / 8, kDvColumns = kHeadDimV / 2 / 8;

  struct SharedStorage {
    SharedTile<Element, kTileKv, kHeadDim> k;
    SharedTile<Element, kTileKv, kHeadDimV> v;
    SharedTile<Element, kBlockQ, kHeadDim> q;
    SharedTile<Element, kBlockQ, kHeadDimV> dout;
    SharedTile<Element, kBlockQ, kTileKv> p, ds;
    float lse_log2[kBlockQ];  // +inf in rows without a key: P = 0
    float delta[kBlockQ];
    int32_t ticket;
  };
  static_assert(sizeof(SharedStorage) <= 113 * 1024);
};

}  // namespace verbatim::cuda::sm80
