// The loader of the sm90 forward under blocks: fetches what the rows see, half tile by half tile.
#pragma once

#include "backend/cuda/sm90/fwd/blocks/config.h"
#include "backend/cuda/sm90/fwd/load.cuh"

namespace verbatim::cuda::sm90::fwd {

/// Loader of Q, K and V. A visit has two slots of K and two of V, which may stay as they are; they
/// are filled in the sequence in which they become free: K of a visit, then V of the one before.
template <class C>
__device__ void load_blocks(typename C::SharedStorage& smem, const Params& p) {
  using Hint = TMA::CacheHintSm90;
  Ring<C::kQStages> q;
  Ring<C::kSlots> slot;
  const auto fill = [&](const CUtensorMap& map, int32_t at, const QueryTile& queries) {
    wait_empty(smem.slot_empty, slot);
    if (at < 0) {
      ptx::mbarrier_arrive(&smem.slot_full[slot.slot()]);
    } else {
      fetch<C::kHeadDim>(map, smem.slot_full[slot.slot()], Hint::EVICT_LAST,
                         smem.slots[slot.slot()], kHalfKeys, at, queries.kv_head, queries.batch);
    }
    slot.advance();
  };
  int2 before{};
  QueryTile queries_before{};
  uint32_t flags = 0;
  bool begun = false;
  for (Ring<C::kVisitRing> visits; !(flags & BlockVisit::stop); visits.advance()) {
    wait_full(smem.visit_full, visits);
    flags = smem.visit[visits.slot()].flags;
    const QueryTile queries = smem.visit[visits.slot()].queries;
    const int2 k_at = smem.visit[visits.slot()].k_at;
    ptx::mbarrier_arrive(&smem.visit_empty[visits.slot()]);
    if ((flags & BlockVisit::first) && !(flags & BlockVisit::stop)) {
      wait_empty(smem.q_empty, q);
#pragma unroll
      for (int head = 0; head < C::kHeads; ++head) {
        fetch<C::kHeadDim>(p.map_q, smem.q_full[q.slot()], Hint::EVICT_FIRST,
                           smem.q[q.slot()][head], C::kTileQ, queries.at, queries.q_head + head,
                           queries.batch);
      }
      q.advance();
    }
    fill(p.map_k, k_at.x, queries);
    fill(p.map_k, k_at.y, queries);
    if (begun) {
      fill(p.map_v, before.x, queries_before);
      fill(p.map_v, before.y, queries_before);
    }
    begun = true;
    before = k_at;
    queries_before = queries;
  }
}

}  // namespace verbatim::cuda::sm90::fwd
