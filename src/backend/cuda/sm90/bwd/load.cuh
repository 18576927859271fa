// The loader of the sm90 backward: fetches the tiles of the decoder's visits with TMA.
#pragma once

#include "backend/cuda/device/recorder.cuh"
#include "backend/cuda/sm90/bwd/config.h"
#include "backend/cuda/sm90/bwd/params.h"
#include "backend/cuda/sm90/ptx.cuh"

namespace verbatim::cuda::sm90_bwd {

/// One thread. It looks up a visit before it waits for room: behind wgmma a look into shared memory
/// takes hundreds of cycles.
template <class C, class Recorder>
__device__ void load(typename C::SharedStorage& smem, const Params& p) {
  const auto load_tile = [](const CUtensorMap& map, uint64_t* bar, typename C::Element* tile,
                            int rows, int32_t begin, int32_t head, int32_t batch) {
    CUTE_UNROLL
    for (int c = 0; c < C::kHeadDim; c += 64) {
      ptx::tma_load_4d(&map, bar, tile + c * rows, c, begin, head, batch);
    }
  };
  uint32_t loads = 0;  // chains with visits so far
  for (uint32_t n = 0;; ++n) {
    ptx::mbarrier_wait(&smem.visit_full[n % kVisitRing], n / kVisitRing % 2);
    const Visit& visit = smem.visit[n % kVisitRing];
    const int32_t row = visit.row, q_begin = visit.q_begin, q_head = visit.q_head;
    const int32_t batch = visit.batch;
    const bool first = visit.head.first;
    if (row < 0) return;
    int32_t kv_begin = 0, kv_head = 0;
    if (first) {
      kv_begin = smem.chain[visit.head.chain].kv_begin;
      kv_head = smem.chain[visit.head.chain].kv_head;
    }

    Recorder::disturb();
    const uint32_t stage = n % C::kStages;
    uint64_t* bar = &smem.rows_full[stage];
    constexpr int kTile = C::kTileQ * C::kHeadDim;
    ptx::mbarrier_wait(&smem.rows_empty[stage], n / C::kStages % 2 ^ 1);
    ptx::mbarrier_arrive_expect(bar, C::kRowsBytes);
    load_tile(p.map_q, bar, smem.q + stage * kTile, C::kTileQ, q_begin, q_head, batch);
    load_tile(p.map_dout, bar, smem.dout + stage * kTile, C::kTileQ, q_begin, q_head, batch);
    ptx::mbarrier_wait(&smem.stats_empty, n % 2 ^ 1);
    ptx::bulk_load(bar, smem.stats,
                   static_cast<const char*>(p.workspace.stats) + int64_t{row} * C::kStatsBytes,
                   C::kStatsBytes);
    if (!first) continue;
    // The first Q travels while the last chain is being written. V is free first.
    Recorder::disturb();
    ptx::mbarrier_wait(&smem.v_empty, loads % 2 ^ 1);
    ptx::mbarrier_arrive_expect(&smem.v_full, C::kKvBytes);
    load_tile(p.map_v, &smem.v_full, smem.v, C::kTileKv, kv_begin, kv_head, batch);
    ptx::mbarrier_wait(&smem.k_empty, loads % 2 ^ 1);
    ptx::mbarrier_arrive_expect(&smem.k_full, C::kKvBytes);
    load_tile(p.map_k, &smem.k_full, smem.k, C::kTileKv, kv_begin, kv_head, batch);
    ++loads;
  }
}

}  // namespace verbatim::cuda::sm90_bwd
