// The way of dQ from shared memory to L2 in the sm90 backward: writers add it in order and hand on
// the turns.
#pragma once

#include "backend/cuda/device/hand_off.cuh"
#include "backend/cuda/device/recorder.cuh"
#include "backend/cuda/device/result.cuh"
#include "backend/cuda/sm90/bwd/config.h"
#include "backend/cuda/sm90/bwd/params.h"
#include "backend/cuda/sm90/fragment.cuh"
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

/// Writes a warpgroup's half of dQ, of which a thread has part(0), .. part(C::kDqParts - 1).
/// `base`, `row` and `rows` count from C::dq_row(half); `columns` are all that a row of dQ has.
template <class C, class Part>
__device__ __forceinline__ void store_dq_rows(int half, Part part, float scale,
                                              typename C::Element* base, int64_t stride, int row,
                                              int rows, int columns) {
  constexpr int kAtOnce = C::kDqPartsAtOnce;
#pragma unroll
  for (int first = 0; first < C::kDqParts; first += kAtOnce) {
    float acc[4 * kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const float4 four = part(first + i);
      acc[4 * i] = four.x;
      acc[4 * i + 1] = four.y;
      acc[4 * i + 2] = four.z;
      acc[4 * i + 3] = four.w;
    }
    const int column = C::dq_column(half) + 8 * first;
    store_rows<typename C::Element, kAtOnce>([&](int i) { return result_of(acc[i], scale); },
                                             base + column, stride, row, rows, columns - column);
  }
}

/// One thread for each buffer: adds the dQ tiles of visits `first`, `first` + kProductStages, .. to
/// dq_sum in the order of their addends, and tells the world. The sum that a row's last addend
/// completes comes back into shared memory, for the consumers. A tile's way to L2 and the release
/// of its turn, of 1,700 cycles, take longer than a visit; so there are as many threads as buffers,
/// and none looks ahead.
template <class C, class Recorder>
__device__ void write_dq(typename C::SharedStorage& smem, const Params& p, uint32_t first) {
  Recorder recorder(p.record, 1 + first, true);
  const auto turn_of = [&](int32_t row) { return p.common.hand_off.row_turn + row; };
  for (uint32_t n = first;; n += C::kProductStages) {
    Recorder::disturb();
    wait_full(smem.visit_full, n);
    const auto& visit = smem.visit[n % C::kVisitRing];
    const int32_t row = visit.row, addend = visit.addend, key = visit.key;
    const bool last = visit.head.rows > 0;
    float* sum = p.workspace.dq_sum + int64_t{visit.sum} * C::kDqFloats;
    if (row < 0) return;
    const bool only = last && addend <= 0;  // nothing to add
    if (p.ordered && (addend > 0 || (addend < 0 && !last))) {
      const int64_t begin = recorder.now();
      // The first addend waits for the end of the sum that had its slot.
      wait_for_turn(p.common, turn_of(addend > 0 ? row : -1 - addend),
                    addend > 0 ? addend : kSumDone, row, false);
      ptx::fence_async_global();
      recorder.note(RecordKind::wait, begin, row, key);
    }
    wait_full(smem.dq_full, n);
    // Everybody has done with the visit whose dQ this buffer held.
    if (n >= C::kProductStages)
      ptx::mbarrier_arrive(&smem.visit_empty[(n - C::kProductStages) % C::kVisitRing]);
    const int64_t begin = recorder.now();
    auto& dq = smem.dq[first];
    uint64_t* sum_full = &smem.sum_full[first];
    ptx::fence_async_shared();
    if (p.ordered && addend <= 0) {  // the first addend needs no zero
      if (!only) ptx::bulk_store(sum, dq, C::kDqBytes);
    } else {
      ptx::bulk_add_f32(sum, dq, C::kDqBytes);
    }
    ptx::bulk_commit();
    if (!last) {
      ptx::mbarrier_arrive(sum_full);  // keeps the phase
      ptx::bulk_wait_read();
      ptx::mbarrier_arrive(&smem.dq_empty[first]);
    }
    Recorder::disturb();
    ptx::bulk_wait_complete();
    recorder.note(RecordKind::reduce, begin, row, key);
    ptx::fence_async_global();
    if (last) {
      if (only) {
        ptx::mbarrier_arrive(sum_full);
      } else {
        ptx::mbarrier_arrive_expect(sum_full, C::kDqBytes);
        ptx::bulk_load(sum_full, dq, sum, C::kDqBytes);
      }
      ptx::mbarrier_arrive(&smem.dq_empty[first]);  // for those who wait for the sum first
      if (!p.shares_sums) continue;
      wait_full(smem.sum_full, n);  // its slot is free once it has been fetched
      store_release(turn_of(row), kSumDone);
    } else if (p.ordered) {
      store_release(turn_of(row), max(addend, 0) + 1);
    }
  }
}

}  // namespace verbatim::cuda::sm90::bwd
