// The way of dQ from shared memory to L2 in the sm90 backward: the writer adds it in order, and the
// signaller hands on the turns.
#pragma once

#include "backend/cuda/device/hand_off.cuh"
#include "backend/cuda/device/recorder.cuh"
#include "backend/cuda/sm90/bwd/config.h"
#include "backend/cuda/sm90/bwd/params.h"
#include "backend/cuda/sm90/pipeline.cuh"

namespace verbatim::cuda::sm90::bwd {

/// Waits until `turn` reaches `addend`, as wait_until(). `tile` indexes row tiles, or with
/// `of_keys` KV tiles.
__device__ __forceinline__ void wait_for_turn(const BackwardParams& p, const int32_t* turn,
                                              int32_t addend, int32_t tile, bool of_keys) {
  wait_until(
      p.hand_off, addend, [&] { return load_acquire(turn); },
      [&](int32_t seen) -> WaitReport {
        const int32_t tiles = of_keys ? p.hand_off.max_kv_tiles : p.hand_off.max_q_tiles;
        const int32_t index = tile / tiles;  // b * kv_heads + kv_head, or b * q_heads + q_head
        const int32_t head = of_keys ? index : index / p.plan.group;
        return {.pass = static_cast<int32_t>(Pass::backward),
                .batch = head / p.plan.kv_heads,
                .kv_head = head % p.plan.kv_heads,
                .q_head = of_keys ? WaitReport::keys : index % p.plan.group,
                .tile = tile % tiles,
                .addend = addend,
                .seen = seen};
      });
}

/// One thread: adds the dQ tiles to dq_sum in the order of their addends. The sum that a row's last
/// addend completes comes back into shared memory, for the consumers. What the next visit needs to
/// know is looked up while this one's addition is under way: behind wgmma a look into shared memory
/// takes hundreds of cycles, and one at a turn is a trip to L2.
template <class C, class Recorder>
__device__ void write_dq(typename C::SharedStorage& smem, const Params& p) {
  struct Next {
    int32_t row, sum, addend, key;
    bool last, waits, ready;  // ready: the turn that it waits for has been seen
    bool ends;  // the last of its chain: others may wait for it before the next one is
                // known, for empty chains between can wait in their turn
  };
  Recorder recorder(p.record, 1, true);
  const auto turn_of = [&](int32_t row) { return p.common.hand_off.row_turn + row; };
  // The first addend waits for the end of the sum that had its slot.
  const auto awaited = [&](const Next& v) { return turn_of(v.addend > 0 ? v.row : -1 - v.addend); };
  const auto due = [](const Next& v) { return v.addend > 0 ? v.addend : kSumDone; };
  const auto look = [&](uint32_t n) {
    wait_full(smem.visit_full, n);
    const Visit& visit = smem.visit[n % kVisitRing];
    Next next{visit.row,           visit.sum, visit.addend, visit.key,
              visit.head.rows > 0, false,     false,        visit.head.last != 0};
    if (p.ordered && next.row >= 0) {
      next.waits = next.addend > 0 || (next.addend < 0 && !next.last);
      next.ready = next.waits && load_acquire(awaited(next)) >= due(next);
    }
    return next;
  };

  uint32_t n = 0, signals = 0;  // visits so far, and those whose end others wait for
  Next next = look(0);
  for (; next.row >= 0; ++n) {
    Recorder::disturb();
    const Next visit = next;
    const uint32_t buffer = n % C::kStages;
    float* sum = p.workspace.dq_sum + int64_t{visit.sum} * C::kDqFloats;
    if (visit.waits) {
      const int64_t begin = recorder.now();
      if (!visit.ready) wait_for_turn(p.common, awaited(visit), due(visit), visit.row, false);
      ptx::fence_async_global();
      recorder.note(RecordKind::wait, begin, visit.row, visit.key);
    }
    wait_full(smem.dq_full, n);
    // Everybody has done with visit n - kStages: this buffer held its dQ.
    if (n >= C::kStages) {
      ptx::mbarrier_arrive(&smem.visit_empty[(n - C::kStages) % kVisitRing]);
    }
    const int64_t begin = recorder.now();
    uint64_t* sum_full = &smem.sum_full[buffer];
    ptx::fence_async_shared();
    const bool only = visit.last && visit.addend <= 0;  // nothing to add
    if (p.ordered && visit.addend <= 0) {               // the first addend needs no zero
      if (!only) ptx::bulk_store(sum, smem.dq[buffer], C::kDqBytes);
    } else {
      ptx::bulk_add_f32(sum, smem.dq[buffer], C::kDqBytes);
    }
    ptx::bulk_commit();
    if (!visit.ends) next = look(n + 1);
    if (!visit.last) {
      ptx::mbarrier_arrive(sum_full);  // keeps the phase
      if (p.ordered) wait_empty(smem.signal_empty, signals);
      ptx::bulk_wait_read();
      ptx::mbarrier_arrive(&smem.dq_empty[buffer]);
    }
    Recorder::disturb();
    ptx::bulk_wait_complete();
    recorder.note(RecordKind::reduce, begin, visit.row, visit.key);
    ptx::fence_async_global();
    if (visit.last) {
      if (only) {
        ptx::mbarrier_arrive(sum_full);
      } else {
        ptx::mbarrier_arrive_expect(sum_full, C::kDqBytes);
        ptx::bulk_load(sum_full, smem.dq[buffer], sum, C::kDqBytes);
      }
      ptx::mbarrier_arrive(&smem.dq_empty[buffer]);  // for those who wait for the sum first
      if (p.shares_sums) wait_empty(smem.signal_empty, signals);
    }
    if (visit.last ? p.shares_sums : p.ordered) {
      // Another thread signals, so that the release is off this thread's chain.
      smem.signal_turn = turn_of(visit.row);
      smem.signal_value = visit.last ? kSumDone : max(visit.addend, 0) + 1;
      smem.signal_visit = n;
      ptx::mbarrier_arrive(&smem.signal_full);
      ++signals;
    }
    if (visit.ends) next = look(n + 1);
  }
  if (!p.ordered) return;
  wait_empty(smem.signal_empty, signals);
  smem.signal_turn = nullptr;
  ptx::mbarrier_arrive(&smem.signal_full);
}

/// One thread: tells the world which addends are complete. A release takes 1,700 cycles, so it is
/// off the writer's chain.
template <class C, class Recorder>
__device__ void signal_turns(typename C::SharedStorage& smem) {
  for (uint32_t n = 0;; ++n) {
    wait_full(smem.signal_full, n);
    int32_t* turn = smem.signal_turn;
    const int32_t value = smem.signal_value;
    if (turn != nullptr && value == kSumDone) {  // its slot is free once it has been fetched
      const uint32_t visit = smem.signal_visit;
      wait_full(smem.sum_full, visit);
    }
    ptx::mbarrier_arrive(&smem.signal_empty);
    if (turn == nullptr) return;
    Recorder::disturb();
    store_release(turn, value);
  }
}

}  // namespace verbatim::cuda::sm90::bwd
