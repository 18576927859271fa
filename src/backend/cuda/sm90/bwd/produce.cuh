// The producer of the sm90 backward: walks the plan, loads tiles, publishes chains and visits.
#pragma once

#include "backend/cuda/sm90/bwd/config.h"
#include "backend/cuda/sm90/bwd/params.h"
#include "backend/cuda/sm90/ptx.cuh"

namespace verbatim::cuda::sm90_bwd {

/// The last lane whose `value` (ascending over lanes) is at most `x`.
__device__ __forceinline__ int last_at_most(int32_t value, int32_t x) {
  int found = 0;
  CUTE_UNROLL
  for (int step = 16; step > 0; step /= 2) {
    if (__shfl_sync(0xffffffff, value, found + step) <= x) found += step;
  }
  return found;
}

/// A whole warp: the lanes look up kBatch visits at a time, for the plan's arrays are a trip to L2
/// away (every acquire of the dQ writers empties L1); lane 0 then waits, loads and publishes.
template <class C>
__device__ void produce(typename C::SharedStorage& smem, const Params& p) {
  const int lane = threadIdx.x % 32;
  const PlanView& plan = p.common.plan;
  uint32_t chains = 0, loads = 0, n = 0;  // chains, those with visits, and visits so far

  // Loads rows [q_begin, q_begin + tile_q) of Q and dO, their LSE and delta. All of a visit comes
  // from registers: behind wgmma a look into shared memory takes hundreds of cycles.
  const auto load_rows = [&](int32_t q_begin, int32_t q_head, int32_t batch, int32_t row) {
    const uint32_t stage = n % C::kStages;
    uint64_t* bar = &smem.rows_full[stage];
    constexpr int kTile = C::kTileQ * C::kHeadDim;
    ptx::mbarrier_wait(&smem.rows_empty[stage], n / C::kStages % 2 ^ 1);
    ptx::mbarrier_arrive_expect(bar, C::kRowsBytes);
    CUTE_UNROLL
    for (int c = 0; c < C::kHeadDim; c += 64) {
      ptx::tma_load_4d(&p.map_q, bar, smem.q + stage * kTile + c * C::kTileQ, c, q_begin, q_head,
                       batch);
    }
    CUTE_UNROLL
    for (int c = 0; c < C::kHeadDim; c += 64) {
      ptx::tma_load_4d(&p.map_dout, bar, smem.dout + stage * kTile + c * C::kTileQ, c, q_begin,
                       q_head, batch);
    }
    ptx::mbarrier_wait(&smem.stats_empty, n % 2 ^ 1);
    ptx::bulk_load(bar, smem.stats,
                   static_cast<const char*>(p.workspace.stats) + int64_t{row} * C::kStatsBytes,
                   C::kStatsBytes);
  };
  const auto load_kv = [&](int32_t kv_begin, int32_t kv_head, int32_t batch) {
    const auto load = [&](const CUtensorMap& map, uint64_t* empty, uint64_t* full,
                          typename C::Element* tile) {
      ptx::mbarrier_wait(empty, loads % 2 ^ 1);
      ptx::mbarrier_arrive_expect(full, C::kKvBytes);
      CUTE_UNROLL
      for (int c = 0; c < C::kHeadDim; c += 64) {
        ptx::tma_load_4d(&map, full, tile + c * C::kTileKv, c, kv_begin, kv_head, batch);
      }
    };
    load(p.map_v, &smem.v_empty, &smem.v_full, smem.v);  // free first
    load(p.map_k, &smem.k_empty, &smem.k_full, smem.k);
    ++loads;
  };

  // The visits of up to 32 runs.
  const auto produce_runs = [&](const OrderView& order, int32_t run, int32_t run_end, int32_t batch,
                                int32_t kv_head, int32_t key, int32_t kv_begin, bool& first) {
    const int32_t count = run + lane < run_end ? order.runs[run + lane].count : 0;
    int32_t begin = count;  // becomes the visits before this lane's run
    CUTE_UNROLL
    for (int step = 1; step < 32; step *= 2) {
      const int32_t below = __shfl_up_sync(0xffffffff, begin, step);
      if (lane >= step) begin += below;
    }
    const int32_t total = __shfl_sync(0xffffffff, begin, 31);
    begin = count > 0 ? begin - count : total;
    for (int32_t base = 0; base < total; base += kBatch) {
      const int32_t i = min(base + lane, total - 1);
      const int j = last_at_most(begin, i);
      const Run& source = order.runs[run + j];
      const int32_t at = i - __shfl_sync(0xffffffff, begin, j);
      const int32_t q_tile = source.tile(at);
      const int32_t q_begin = static_cast<int32_t>(order.q_edges[q_tile]);
      const int32_t q_head = kv_head * plan.group + source.q_head;
      const int32_t row =
          (batch * p.common.sizes.q_heads + q_head) * p.common.hand_off.max_q_tiles + q_tile;
      if (lane < kBatch) {
        Visit& visit = smem.visit[(n + lane) % kVisitRing];
        visit.q_begin = q_begin;
        visit.q_head = q_head;
        visit.row = row;
        visit.key = key;
        const int32_t addend = source.addend_of(at);
        visit.addend = addend;
        const bool is_last = p.ordered && addend + 1 == order.row_addends[q_tile];
        visit.last_rows = is_last ? static_cast<int32_t>(order.q_edges[q_tile + 1]) - q_begin : 0;
        visit.slice_begin = source.slice_begin;
        visit.slice_count = source.slice_count;
        if (base + lane < total) ptx::mbarrier_arrive(&smem.visit_full[(n + lane) % kVisitRing]);
      }
      __syncwarp();
      const int count = min(kBatch, total - base);
      for (int v = 0; v < count; ++v, ++n) {
        const int32_t visit_begin = __shfl_sync(0xffffffff, q_begin, v);
        const int32_t visit_head = __shfl_sync(0xffffffff, q_head, v);
        const int32_t visit_row = __shfl_sync(0xffffffff, row, v);
        if (lane == 0) {
          load_rows(visit_begin, visit_head, batch, visit_row);
          // The first Q travels while the last chain is being written.
          if (first) load_kv(kv_begin, kv_head, batch);
        }
        first = false;
      }
      __syncwarp();
    }
  };

  const auto produce_chain = [&](const PlacedTask& placed, const OrderView& order, int32_t index) {
    const Chain& planned = order.chains[index];
    const int32_t run_begin = planned.run_begin, run_end = planned.run_end;
    int32_t visits = 0;
    for (int32_t r = run_begin + lane; r < run_end; r += 32) visits += order.runs[r].count;
    visits = __reduce_add_sync(0xffffffff, visits);
    const int32_t batch = placed.head / plan.kv_heads;
    const int32_t kv_head = placed.head - batch * plan.kv_heads;
    const int32_t key = placed.head * p.common.hand_off.max_kv_tiles + planned.tile;
    const int32_t kv_begin = static_cast<int32_t>(order.kv_edges[planned.tile]);
    if (lane == 0) {
      Chain90& chain = smem.chain[chains % kChainRing];
      ptx::mbarrier_wait(&smem.chain_empty[chains % kChainRing], chains / kChainRing % 2 ^ 1);
      chain.visits = visits;
      chain.kv_begin = kv_begin;
      chain.kv_rows = static_cast<int32_t>(order.kv_edges[planned.tile + 1]) - kv_begin;
      chain.batch = batch;
      chain.kv_head = kv_head;
      chain.order = plan.order_of_head[placed.head];
      chain.key = key;
      chain.addend = planned.addend;
      chain.addends = planned.addends;
      ptx::mbarrier_arrive(&smem.chain_full[chains % kChainRing]);
    }
    __syncwarp();
    bool first = true;
    for (int32_t run = run_begin; run < run_end; run += 32) {
      produce_runs(order, run, run_end, batch, kv_head, key, kv_begin, first);
    }
    ++chains;
  };

  for (;;) {
    int32_t unit = 0;
    if (lane == 0) unit = atomicAdd(p.common.hand_off.ticket, 1);
    unit = __shfl_sync(0xffffffff, unit, 0);
    if (unit >= plan.unit_count) break;
    const int32_t end = plan.unit_begin ? plan.unit_begin[unit + 1] : unit + 1;
    for (int32_t t = plan.unit_begin ? plan.unit_begin[unit] : unit; t < end; ++t) {
      const PlacedTask placed = plan.placed[t];
      const OrderView& order = plan.orders[plan.order_of_head[placed.head]];
      const Task task = order.tasks[placed.task];
      for (int32_t c = task.chain_begin; c < task.chain_end; ++c) produce_chain(placed, order, c);
    }
  }
  if (lane == 0) {
    ptx::mbarrier_wait(&smem.chain_empty[chains % kChainRing], chains / kChainRing % 2 ^ 1);
    smem.chain[chains % kChainRing].visits = -1;
    ptx::mbarrier_arrive(&smem.chain_full[chains % kChainRing]);
    smem.visit[n % kVisitRing].row = -1;
    ptx::mbarrier_arrive(&smem.visit_full[n % kVisitRing]);
  }
}

}  // namespace verbatim::cuda::sm90_bwd
