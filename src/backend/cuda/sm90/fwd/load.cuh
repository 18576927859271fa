// The loaders of the sm90 forward: fetch the tiles of the decoder's visits with TMA. K and V have a
// warp each: a K slot is free half a visit before a V slot.
#pragma once

#include "backend/cuda/sm90/fwd/config.h"
#include "backend/cuda/sm90/fwd/params.h"
#include "backend/cuda/sm90/pipeline.cuh"

namespace verbatim::cuda::sm90::fwd {

/// Copies kDim / 64 boxes of (64, box rows) to parts of `rows` rows, one behind the other.
template <int kDim, class Element>
__device__ void copy_boxes(const CUtensorMap& map, uint64_t& full, TMA::CacheHintSm90 hint,
                           Element* to, int32_t rows, int32_t begin, int32_t head, int32_t batch) {
#pragma unroll
  for (int part = 0; part < kDim / kSwizzleSpan; ++part) {
    SM90_TMA_LOAD_4D::copy(&map, &full, static_cast<uint64_t>(hint),
                           to + part * rows * kSwizzleSpan, part * kSwizzleSpan, begin, head,
                           batch);
  }
}

/// Fetches a tile of `rows` rows; completes on `full`.
template <int kDim, class Element>
__device__ void fetch(const CUtensorMap& map, uint64_t& full, TMA::CacheHintSm90 hint, Element* to,
                      int32_t rows, int32_t begin, int32_t head, int32_t batch) {
  ptx::mbarrier_arrive_expect(&full, rows * kDim * sizeof(Element));
  copy_boxes<kDim>(map, full, hint, to, rows, begin, head, batch);
}

/// Fetches the halves of a tile of K or V that a visit asks for.
template <class C, int kDim>
__device__ void fetch_keys(uint32_t flags, const CUtensorMap& map, uint64_t& full,
                           typename C::Element* to, int32_t begin, int32_t head, int32_t batch) {
  constexpr auto kHint = TMA::CacheHintSm90::EVICT_LAST;
  if constexpr (!C::kHalves) {
    fetch<kDim>(map, full, kHint, to, C::kTileKv, begin, head, batch);
  } else {
    using Visit = typename C::Visit;
    constexpr uint32_t kBytes = kHalfKeys * kDim * sizeof(typename C::Element);
    ptx::mbarrier_arrive_expect(&full, __popc(flags & Visit::asks) * kBytes);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (flags & (Visit::asks_0 << h))
        copy_boxes<kDim>(map, full, kHint, to + h * kHalfKeys * kSwizzleSpan, C::kTileKv,
                         begin + h * kHalfKeys, head, batch);
    }
  }
}

/// Calls f(flags, queries, k_at) for every visit, and for the stop. One lane of a loader warp.
template <class C, class F>
__device__ void for_each_visit(typename C::SharedStorage& smem, F&& f) {
  uint32_t flags = 0;
  for (Ring<kVisitRing> visits; !(flags & C::Visit::stop); visits.advance()) {
    wait_full(smem.visit_full, visits);
    const int slot = visits.slot();
    flags = smem.visit[slot].flags[0];
    const QueryTile queries = smem.visit[slot].queries;
    const int32_t k_at = smem.visit[slot].k_at;
    ptx::mbarrier_arrive(&smem.visit_empty[slot]);
    f(flags, queries, k_at);
  }
}

/// Loader of Q and K.
template <class C>
__device__ void load_keys(typename C::SharedStorage& smem, const Params& p) {
  using Visit = typename C::Visit;
  using Hint = TMA::CacheHintSm90;
  Ring<C::kQStages> q;
  Ring<C::kKStages> k;
  for_each_visit<C>(smem, [&](uint32_t flags, const QueryTile& queries, int32_t k_at) {
    if ((flags & Visit::first) && !(flags & Visit::stop)) {
      wait_empty(smem.q_empty, q);
      fetch<C::kHeadDim>(p.map_q, smem.q_full[q.slot()], Hint::EVICT_FIRST, smem.q[q.slot()],
                         C::kTileQ, queries.at, queries.q_head, queries.batch);
      q.advance();
    }
    wait_empty(smem.k_empty, k);
    if (flags & (Visit::empty | Visit::stop)) {
      ptx::mbarrier_arrive(&smem.k_full[k.slot()]);
    } else {
      fetch_keys<C, C::kHeadDim>(flags, p.map_k, smem.k_full[k.slot()], smem.k[k.slot()], k_at,
                                 queries.kv_head, queries.batch);
    }
    k.advance();
  });
}

/// Loader of V.
template <class C>
__device__ void load_values(typename C::SharedStorage& smem, const Params& p) {
  using Visit = typename C::Visit;
  Ring<C::kVStages> v;
  for_each_visit<C>(smem, [&](uint32_t flags, const QueryTile& queries, int32_t k_at) {
    if (flags & Visit::stop) return;
    wait_empty(smem.v_empty, v);
    if (flags & Visit::empty) {
      ptx::mbarrier_arrive(&smem.v_full[v.slot()]);
    } else {
      fetch_keys<C, C::kHeadDimV>(flags, p.map_v, smem.v_full[v.slot()], smem.v[v.slot()], k_at,
                                  queries.kv_head, queries.batch);
    }
    v.advance();
  });
}

}  // namespace verbatim::cuda::sm90::fwd
