// The decoder of the sm90 forward: walks the plan and publishes visits.
#pragma once

#include "backend/cuda/sm90/fwd/config.h"
#include "backend/cuda/sm90/fwd/mask.cuh"
#include "backend/cuda/sm90/pipeline.cuh"

namespace verbatim::cuda::sm90::fwd {

/// Decoder warp: turns tickets into visits. It looks up to kBatch visits of a chain up at once,
/// with a lane for each of their bands, and publishes them one after another.
template <class C>
__device__ void decode(typename C::SharedStorage& smem, const PlanView& plan,
                       int32_t* next_ticket) {
  using Visit = typename C::Visit;
  constexpr int kBands = kInlineBands, kBatch = 32 / kBands;
  constexpr int kTileWords = sizeof(QueryTile) / 4;
  static_assert(C::kConsumers <= kBands && kTileWords <= 32);
  const int lane = threadIdx.x % 32, b = lane % kBands;
  Ring<kVisitRing> ring;

  const auto publish = [&](auto&& fill) {
    wait_empty(smem.visit_empty, ring);
    fill(smem.visit[ring.slot()]);
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(&smem.visit_full[ring.slot()]);
    ring.advance();
  };
  // The chain at smem.queries, of runs [run, end).
  const auto decode_chain = [&](const OrderView& order, int32_t run, const int32_t end) {
    const int32_t q_begin = smem.queries.begin, q_rows = smem.queries.rows;
    const int32_t word =
        lane < kTileWords ? reinterpret_cast<const int32_t*>(&smem.queries)[lane] : 0;
    const auto put_queries = [&](Visit& visit) {
      if (lane < kTileWords) reinterpret_cast<int32_t*>(&visit.queries)[lane] = word;
    };
    if (run == end) {  // a visit that sees nothing: O = 0, LSE = -inf follow by themselves
      publish([&](Visit& visit) {
        put_queries(visit);
        if (lane < C::kConsumers) visit.flags[lane] = Visit::first | Visit::empty | Visit::hidden;
      });
      return;
    }
    uint32_t first = lane < kBands ? Visit::first : 0;
    // This lane looks at bands b, b + kBands .. of visit `i` of the runs from `run` on.
    for (int32_t i = lane / kBands;; i += kBatch) {
      while (run < end && i >= order.runs[run].count) i -= order.runs[run++].count;
      const bool there = run < end;
      const int count = __popc(__ballot_sync(~0u, there)) / kBands;
      if (count == 0) return;
      int32_t k_begin = 0, k_at = 0, k_width = 0, k_used = 0, bands = 0, slice_begin = 0;
      Band band{};
      if (there) {
        const Run& source = order.runs[run];
        const int32_t tile = source.tile(i);
        const int64_t* edges = order.kv_edges + tile;
        k_begin = static_cast<int32_t>(edges[0]);
        k_at = static_cast<int32_t>(order.kv_rows[tile]);
        k_width = static_cast<int32_t>(edges[1]) - k_begin;
        const int32_t slices = source.slice_count;
        slice_begin = source.slice_begin;
        if (slices == 0) {
          k_used = k_width;
          bands = k_width < C::kTileKv;
          band = {0, C::kTileQ, 0, static_cast<int16_t>(k_width), -kFar, kFar};
        } else {
          bands = slices;
          for (int32_t s = b; s < slices; s += kBands) {
            const Slice& slice = order.slices[order.slice_ids[slice_begin + s]];
            const Band next = make_band(slice, q_begin, k_begin, k_width);
            if (s == b) band = next;
            k_used = max(k_used, int32_t{next.k_end});
          }
        }
      }
#pragma unroll
      for (int other = 1; other < kBands; other *= 2) {
        k_used = max(k_used, __shfl_xor_sync(~0u, k_used, other));
      }
      // From here on lane b is warpgroup b's: what its rows see of the visit.
      const auto look = [&](const Band& part, int32_t keys, uint32_t& all, uint32_t& some) {
#pragma unroll
        for (int group = 0; group < C::kConsumers; ++group) {
          const int32_t begin = kRows * group, stop = min(begin + kRows, q_rows);
          const bool looks = b < bands && begin < stop;
          const uint32_t shown = __ballot_sync(~0u, looks && shows_all(part, begin, stop, keys));
          const uint32_t seen = __ballot_sync(~0u, looks && shows_some(part, begin, stop));
          if (group == b) all = shown, some = seen;
        }
      };
      uint32_t all = 0, some = 0;
      look(band, C::kTileKv, all, some);
      const uint32_t own = ((1u << kBands) - 1) << (lane - b);
      uint32_t flags = first | (k_used < C::kTileKv ? Visit::tail : 0);
      first = 0;
      if (q_rows <= kRows * b) {
        flags |= Visit::hidden;
      } else if (bands > 0 && !(all & own)) {
        flags |= (some & own) || bands > kBands ? Visit::masked : Visit::hidden;
      }
      if constexpr (C::kHalves) {
        uint32_t all_of[2], some_of[2];  // one a half
#pragma unroll
        for (int h = 0; h < 2; ++h) look(of_half(band, h), kHalfKeys, all_of[h], some_of[h]);
        if ((flags & Visit::masked) && bands <= kBands) {
          if ((all_of[0] & own) && !(some_of[1] & own)) flags ^= Visit::masked | Visit::half_0;
          if ((all_of[1] & own) && !(some_of[0] & own)) flags ^= Visit::masked | Visit::half_1;
          // All of the half that is multiplied is seen, up to the end of the keys.
          if (flags & Visit::half) flags &= ~Visit::tail;
        }
        // What the warpgroups multiply: halves, or everything.
        const bool counts = b < C::kConsumers && !(flags & Visit::hidden);
        const bool whole = counts && !(flags & Visit::half);
        if (__ballot_sync(~0u, whole || (counts && (flags & Visit::half_0))) & own)
          flags |= Visit::asks_0;
        if (__ballot_sync(~0u, whole || (counts && (flags & Visit::half_1))) & own)
          flags |= Visit::asks_1;
      }
#pragma unroll 1
      for (int v = 0; v < count; ++v) {
        publish([&](Visit& visit) {
          put_queries(visit);
          if (lane / kBands != v) return;
          visit.bands[b] = band;
          if (b < C::kConsumers) visit.flags[b] = flags;
          if (b > 0) return;
          visit.k_begin = k_begin;
          visit.k_at = k_at;
          visit.k_width = k_width;
          visit.k_used = k_used;
          visit.band_count = bands;
          visit.slice_begin = slice_begin;
          visit.order = &order;
        });
      }
    }
  };
  const auto decode_task = [&](const PlacedTask& placed) {
    const OrderView& order = plan.orders[plan.order_of_head[placed.head]];
    const Task task = order.tasks[placed.task];
    for (int32_t c = task.chain_begin; c < task.chain_end; ++c) {
      const Chain& chain = order.chains[c];
      if (lane == 0) {
        const int32_t q_begin = static_cast<int32_t>(order.q_edges[chain.tile]);
        const int32_t batch = placed.head / plan.kv_heads;
        const int32_t kv_head = placed.head - batch * plan.kv_heads;
        smem.queries = {q_begin,
                        static_cast<int32_t>(order.q_edges[chain.tile + 1]) - q_begin,
                        static_cast<int32_t>(order.q_rows[chain.tile]),
                        kv_head * plan.group + chain.q_head,
                        kv_head,
                        batch,
                        placed.head,
                        chain.tile};
      }
      __syncwarp();
      decode_chain(order, chain.run_begin, chain.run_end);
    }
  };

  int32_t ticket = blockIdx.x;
  while (ticket < plan.unit_count) {
    // Asked for now, needed when this unit has been decoded.
    const int32_t next = lane == 0 ? gridDim.x + atomicAdd(next_ticket, 1) : 0;
    const int32_t begin = plan.unit_begin ? plan.unit_begin[ticket] : ticket;
    const int32_t end = plan.unit_begin ? plan.unit_begin[ticket + 1] : ticket + 1;
    for (int32_t i = begin; i < end; ++i) decode_task(plan.placed[i]);
    ticket = __shfl_sync(~0u, next, 0);
  }
  publish([&](Visit& visit) {
    if (lane < C::kConsumers) visit.flags[lane] = Visit::stop | Visit::first | Visit::hidden;
  });
}

}  // namespace verbatim::cuda::sm90::fwd
