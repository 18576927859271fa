// The loader of the sm90 backward: fetches the tiles of the decoder's visits with TMA.
//
// A box is not cut where a tile ends: behind the rows that the mask shows it holds padding or
// another document. P hides them, but 0 * NaN is NaN. So such a tile arrives on a barrier of the
// loader's own, whose warp writes zeros there and passes it on; others cost nothing.
#pragma once

#include "backend/cuda/device/recorder.cuh"
#include "backend/cuda/sm90/bwd/config.h"
#include "backend/cuda/sm90/bwd/params.h"
#include "backend/cuda/sm90/pipeline.cuh"

namespace verbatim::cuda::sm90::bwd {

/// Zeros in the rows from `used` on of a tile in shared memory, by a warp: the swizzle moves 16
/// bytes inside their row of 128.
template <int kRows, int kDim, class Element>
__device__ __forceinline__ void clear_rows(Element* tile, int32_t used, int lane) {
#pragma unroll
  for (int c = 0; c < kDim; c += 64) {
    auto* part = reinterpret_cast<uint4*>(tile + c * kRows);
#pragma unroll 1
    for (int i = used * 8 + lane; i < kRows * 8; i += 32) part[i] = make_uint4(0, 0, 0, 0);
  }
}

/// A warp, whose first lane waits for room and copies. It looks up a visit before it waits: behind
/// wgmma a look into shared memory takes hundreds of cycles.
template <class C, class Recorder>
__device__ void load(typename C::SharedStorage& smem, const Params& p) {
  const int lane = threadIdx.x % 32;
  const auto load_tile = [](const CUtensorMap& map, uint64_t* bar, typename C::Element* tile,
                            int rows, auto dim, int32_t begin, int32_t head, int32_t batch) {
#pragma unroll
    for (int c = 0; c < dim(); c += 64) {
      ptx::tma_load_4d(&map, bar, tile + c * rows, c, begin, head, batch);
    }
  };
  uint32_t loads = 0, cleaned = 0;  // chains with visits, and visits with tiles to clean, so far
  const int32_t* used = nullptr;    // OrderView::q_used of the chain's order
  for (uint32_t n = 0;; ++n) {
    wait_full(smem.visit_full, n);
    const auto& visit = smem.visit[n % C::kVisitRing];
    const int32_t row = visit.row, q_at = visit.q_at, q_head = visit.q_head;
    const int32_t batch = visit.batch;
    const bool first = visit.head.first;
    if (row < 0) return;
    int32_t kv_at = 0, kv_head = 0, kv_used = C::kTileKv;
    if (first) {
      const Chain90& chain = smem.chain[visit.head.chain];
      const OrderView& order = p.common.plan.orders[chain.cursor.order];
      kv_at = chain.kv_at;
      kv_head = chain.kv_head;
      kv_used = order.kv_used[chain.key % p.common.hand_off.max_kv_tiles];
      used = order.q_used;
    }
    const int32_t q_used = used[row % p.common.hand_off.max_q_tiles];
    __syncwarp();  // all lanes have looked: what the first one now lets go on frees the slots

    const uint32_t stage = n % C::kStages;
    constexpr Int<C::kHeadDim> of_k;
    constexpr Int<C::kHeadDimV> of_v;
    typename C::Element* q = smem.q + stage * C::kTileQ * C::kHeadDim;
    typename C::Element* dout = smem.dout + stage * C::kTileQ * C::kHeadDimV;
    uint64_t* rows_full = &smem.rows_full[stage];
    const bool clean_rows = q_used < C::kTileQ, clean_keys = kv_used < C::kTileKv;
    if (lane == 0) {
      Recorder::disturb();
      wait_empty(smem.rows_empty, n);
      uint64_t* bar = rows_full;
      if (clean_rows) {
        bar = &smem.raw;
        ptx::mbarrier_expect(rows_full, C::kStatsBytes);
        ptx::mbarrier_expect(bar, C::kRowsBytes - C::kStatsBytes);
      } else {
        ptx::mbarrier_arrive_expect(rows_full, C::kRowsBytes);
      }
      load_tile(p.map_q, bar, q, C::kTileQ, of_k, q_at, q_head, batch);
      load_tile(p.map_dout, bar, dout, C::kTileQ, of_v, q_at, q_head, batch);
      wait_empty(smem.stats_empty, n);
      ptx::bulk_load(rows_full, smem.stats,
                     static_cast<const char*>(p.workspace.stats) + int64_t{row} * C::kStatsBytes,
                     C::kStatsBytes);
      if (first) {
        // The first Q travels while the last chain is being written. V is free first.
        const auto load_keys = [&](const CUtensorMap& map, uint64_t& full, uint64_t& empty,
                                   typename C::Element* tile, auto dim) {
          constexpr uint32_t kBytes = C::kTileKv * dim() * 2;
          wait_empty(empty, loads);
          if (clean_keys) {
            ptx::mbarrier_expect(&smem.raw, kBytes);
          } else {
            ptx::mbarrier_arrive_expect(&full, kBytes);
          }
          load_tile(map, clean_keys ? &smem.raw : &full, tile, C::kTileKv, dim, kv_at, kv_head,
                    batch);
        };
        Recorder::disturb();
        load_keys(p.map_v, smem.v_full, smem.v_empty, smem.v, of_v);
        load_keys(p.map_k, smem.k_full, smem.k_empty, smem.k, of_k);
      }
      if (clean_rows || clean_keys) ptx::mbarrier_arrive(&smem.raw);
    }
    __syncwarp();  // nobody polls while the first lane works
    loads += first;
    if (!clean_rows && !clean_keys) continue;
    wait_full(smem.raw, cleaned++);
    if (clean_keys) {
      clear_rows<C::kTileKv, C::kHeadDim>(smem.k, kv_used, lane);
      clear_rows<C::kTileKv, C::kHeadDimV>(smem.v, kv_used, lane);
    }
    if (clean_rows) {
      clear_rows<C::kTileQ, C::kHeadDim>(q, q_used, lane);
      clear_rows<C::kTileQ, C::kHeadDimV>(dout, q_used, lane);
    }
    Recorder::disturb();
    ptx::fence_async_shared();
    __syncwarp();
    if (lane == 0 && clean_keys) {
      ptx::mbarrier_arrive(&smem.k_full);
      ptx::mbarrier_arrive(&smem.v_full);
    }
    if (lane == 0 && clean_rows) ptx::mbarrier_arrive(rows_full);
  }
}

}  // namespace verbatim::cuda::sm90::bwd
