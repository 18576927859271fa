// The decoder of the sm90 backward: walks the plan and publishes chains and visits.
#pragma once

#include "backend/cuda/device/hand_off.cuh"
#include "backend/cuda/device/recorder.cuh"
#include "backend/cuda/sm90/bwd/config.h"
#include "backend/cuda/sm90/bwd/params.h"
#include "backend/cuda/sm90/pipeline.cuh"
#include "backend/cuda/sm90/runs.cuh"

namespace verbatim::cuda::sm90::bwd {

constexpr int kBatch = 4;            // visits looked up at once
constexpr int kLanes = 32 / kBatch;  // that look up one of them
// A ticket is taken when at most so many visits before it occupy the ring: late enough that tickets
// start in their order, for chains wait for each other; early enough for ten trips to L2.
constexpr uint32_t kAhead = 6;

/// Waits until the tickets after `unit` of which that unit's tasks may wait for one are taken, as
/// wait_until(): one lane.
__device__ __forceinline__ void wait_for_tickets(const Params& p, int32_t unit) {
  const PlanView& plan = p.common.plan;
  const HandOff& hand_off = p.common.hand_off;
  const int32_t count = min(unit + p.together, plan.unit_count);
  wait_until(
      hand_off, count,
      [&] {
        const int32_t taken = *static_cast<volatile int32_t*>(hand_off.ticket);
        if (taken < count) __nanosleep(200);
        return taken;
      },
      [&](int32_t seen) -> WaitReport {
        const int32_t task =  // its first; a unit may be empty
            plan.unit_begin ? min(plan.unit_begin[unit], plan.unit_begin[plan.unit_count] - 1)
                            : unit;
        const PlacedTask placed = plan.placed[task];
        const OrderView& order = plan.orders[plan.order_of_head[placed.head]];
        return {.pass = static_cast<int32_t>(Pass::backward),
                .batch = placed.head / plan.kv_heads,
                .kv_head = placed.head % plan.kv_heads,
                .q_head = WaitReport::tickets,
                .tile = order.chains[order.tasks[placed.task].chain_begin].tile,
                .addend = count,
                .seen = seen};
      });
}

/// A whole warp. From a ticket to the first tile of its chain it is about ten trips to L2, each of
/// which waits for the one before: as long as two visits take. So a warp of its own walks ahead.
template <class C, class Recorder>
__device__ void decode(typename C::SharedStorage& smem, const Params& p) {
  const int lane = threadIdx.x % 32;
  const PlanView& plan = p.common.plan;
  uint32_t chains = 0, n = 0;  // chains and visits so far

  // The visits of up to 32 runs of `chain`.
  const auto publish_runs = [&](const Chain90& chain, int32_t run) {
    const OrderView& order = plan.orders[chain.cursor.order];
    const int32_t count = run + lane < chain.run_end ? order.runs[run + lane].count : 0;
    const RunWindow window(count);
    const int32_t total = window.total();
    for (int32_t base = 0; base < total; base += kBatch) {
      // Eight lanes look up a visit: six of them a member of its bands each, one the rest.
      const int32_t i = min(base + lane / kLanes, total - 1);
      const int member = lane % kLanes;
      const bool there = lane / kLanes < total - base;
      const int j = window.run_of(i);
      const Run& source = order.runs[run + j];
      const int32_t at = i - window.before(j);
      const uint32_t slot = (n + lane / kLanes) % C::kVisitRing;
      if (there) {
        Recorder::disturb();
        wait_empty(smem.visit_empty, n + lane / kLanes);
        auto& visit = smem.visit[slot];
        const int32_t q_tile = source.tile(at), addend = source.addend_of(at);
        const int32_t q_begin = static_cast<int32_t>(order.q_edges[q_tile]);
        const int32_t q_at = static_cast<int32_t>(order.q_rows[q_tile]);
        const int32_t slices = source.slice_count, slice_begin = source.slice_begin;
        const int32_t addends = order.row_addends[q_tile];
        const int32_t q_end = static_cast<int32_t>(order.q_edges[q_tile + 1]);
        const bool cut = chain.kv_rows < C::kTileKv;
        int32_t ids[C::kBands];  // asked for before the rest is waited for
#pragma unroll
        for (int s = 0; s < C::kBands; ++s)
          ids[s] = s < slices ? order.slice_ids[slice_begin + s] : -1;
        if (member == 6) {
          if (slices == 0 && cut) {
            visit.bands[0] = {0, C::kTileQ, 0, static_cast<int16_t>(chain.kv_rows), -kFar, kFar};
          }
          const int32_t q_head = chain.kv_head * plan.group + source.q_head;
          const int32_t row =
              (chain.batch * p.common.sizes.q_heads + q_head) * p.common.hand_off.max_q_tiles +
              q_tile;
          const bool is_last = p.ordered && addend + 1 == addends;
          const int32_t rows = q_end - q_begin;
          visit.row = row;
          visit.sum = row - chain.to_sum;
          visit.key = chain.key;
          visit.addend = addend > 0 ? addend : min(chain.to_user - row - 1, 0);
          visit.q_begin = q_begin;
          visit.q_at = q_at;
          visit.head = {.first = i == 0 && run == chain.run_begin,
                        .last = i == total - 1 && run + 32 >= chain.run_end,
                        .chain = static_cast<uint16_t>(chains % kChainRing),
                        .rows = static_cast<uint16_t>(is_last ? rows : 0),
                        .bands = static_cast<uint16_t>(max(slices, static_cast<int32_t>(cut)))};
          visit.q_head = q_head;
          visit.batch = chain.batch;
          visit.slice_begin = slice_begin;
        }
#pragma unroll
        for (int s = 0; s < C::kBands; ++s) {
          if (member >= 6 || ids[s] < 0) continue;
          (&visit.bands[s].q_begin)[member] =
              band_member(member, order.slices[ids[s]], q_begin, chain.kv_begin, chain.kv_rows);
        }
      }
      __syncwarp();
      if (there && member == 0) ptx::mbarrier_arrive(&smem.visit_full[slot]);
      n += min(kBatch, total - base);
    }
  };

  // Publishes the chain at `cursor`. Returns the copy of `cursor` in its slot, so that meanwhile no
  // register has to hold it.
  const auto publish_chain = [&](const Cursor& cursor) -> const Cursor& {
    Chain90& chain = smem.chain[chains % kChainRing];
    if (lane == 0) {
      const OrderView& order = plan.orders[cursor.order];
      const Chain& planned = order.chains[cursor.chain];
      const int32_t head = cursor.head;
      const int32_t run_begin = planned.run_begin, run_end = planned.run_end, tile = planned.tile;
      const int32_t kv_begin = static_cast<int32_t>(order.kv_edges[tile]);
      const int32_t kv_end = static_cast<int32_t>(order.kv_edges[tile + 1]);
      const int32_t kv_at = static_cast<int32_t>(order.kv_rows[tile]);
      wait_empty(smem.chain_empty, chains);
      chain.state = run_begin < run_end ? Chain90::visited : Chain90::empty;
      chain.kv_begin = kv_begin;
      chain.kv_rows = kv_end - kv_begin;
      chain.kv_at = kv_at;
      chain.batch = head / plan.kv_heads;
      chain.kv_head = head % plan.kv_heads;
      chain.cursor = cursor;
      chain.run_begin = run_begin;
      chain.run_end = run_end;
      chain.key = head * p.common.hand_off.max_kv_tiles + tile;
      // Its query heads have the slots that those `rounds` times live_queries before them had.
      const int32_t tiles = p.common.hand_off.max_q_tiles;
      const int32_t first_query = plan.group * planned.addend / planned.addends;
      const int32_t rounds = first_query / p.live_queries, turns = head / p.live_heads;
      const int32_t others = plan.group - p.live_queries;
      chain.to_sum = (rounds * p.live_queries + turns * p.live_heads * plan.group +
                      (head - turns * p.live_heads) * others) *
                     tiles;
      chain.to_user = (rounds > 0 ? p.live_queries : p.live_heads * plan.group - others) * tiles;
      chain.addend = planned.addend;
      chain.addends = planned.addends;
      chain.continues = planned.continues;
      chain.pauses = planned.pauses;
      chain.apart = planned.apart;
      ptx::mbarrier_arrive(&smem.chain_full[chains % kChainRing]);
    }
    __syncwarp();
    for (int32_t run = chain.run_begin; run < chain.run_end; run += 32) publish_runs(chain, run);
    ++chains;
    return chain.cursor;
  };

  for (int32_t last = -1;;) {  // the unit before
    if (n >= kAhead) wait_empty(smem.visit_empty, n - kAhead + C::kVisitRing);
    Recorder::disturb();
    int32_t unit = 0;
    if (lane == 0) {
      if (p.together > 1 && last >= 0) wait_for_tickets(p, last);
      unit = atomicAdd(p.common.hand_off.ticket, 1);
    }
    unit = __shfl_sync(~0u, unit, 0);
    if (unit >= plan.unit_count) break;
    last = unit;
    Cursor cursor;
    cursor.task = plan.unit_begin ? plan.unit_begin[unit] : unit;
    cursor.task_end = plan.unit_begin ? plan.unit_begin[unit + 1] : unit + 1;
    for (; cursor.task < cursor.task_end; ++cursor.task) {
      const PlacedTask placed = plan.placed[cursor.task];
      cursor.head = placed.head;
      cursor.order = plan.order_of_head[placed.head];
      const Task task = plan.orders[cursor.order].tasks[placed.task];
      cursor.chain = task.chain_begin;
      cursor.chain_end = task.chain_end;
      for (; cursor.chain < cursor.chain_end; ++cursor.chain) cursor = publish_chain(cursor);
    }
  }
  if (lane == 0) {
    wait_empty(smem.chain_empty, chains);
    smem.chain[chains % kChainRing].state = Chain90::end;
    ptx::mbarrier_arrive(&smem.chain_full[chains % kChainRing]);
    for (const uint32_t end = n + C::kProductStages; n < end; ++n) {  // one for each writer
      wait_empty(smem.visit_empty, n);
      smem.visit[n % C::kVisitRing].row = -1;
      ptx::mbarrier_arrive(&smem.visit_full[n % C::kVisitRing]);
    }
  }
}

}  // namespace verbatim::cuda::sm90::bwd
