// The decoder of the sm90 forward under blocks: publishes what 64 rows see.
#pragma once

#include "backend/cuda/sm90/fwd/blocks/config.h"
#include "backend/cuda/sm90/fwd/mask.cuh"
#include "backend/cuda/sm90/pipeline.cuh"
#include "backend/cuda/sm90/runs.cuh"

namespace verbatim::cuda::sm90::fwd {

/// Decoder warp: turns tickets into visits, a ticket being 64 rows of a unit's chains, or of those
/// of two tasks in the sequence of a queue, whose heads have the same visits. It reads up
/// to 32 runs at once, looks up to kBatch visits up at once, with a lane for each of their bands,
/// and publishes them one after another.
template <class C>
__device__ void decode_blocks(typename C::SharedStorage& smem, const PlanView& plan,
                              int32_t* next_ticket) {
  using Visit = BlockVisit;
  constexpr int kBands = kInlineBands, kBatch = 32 / kBands;
  constexpr int kTileWords = sizeof(QueryTile) / 4;
  static_assert(kTileWords <= 32);
  constexpr int32_t kNone = -1;
  const int lane = threadIdx.x % 32, b = lane % kBands;
  Ring<C::kVisitRing> ring;

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
    bool begun = false;
    // Two halves behind each other are one visit, of which the first may wait here. Not the first
    // visit of a chain, nor one behind a tail: these are not plain.
    int32_t waiting = kNone;
    bool pairs = false;
    const auto publish_halves = [&](uint32_t flags, int32_t second) {
      publish([&](Visit& visit) {
        put_queries(visit);
        if (lane > 0) return;
        visit.flags = flags | (second == kNone ? Visit::single : Visit::pair);
        visit.k_at = {waiting, second};
      });
      waiting = kNone;
    };
    // The visits of up to 32 runs, which this lane has one of. It looks at bands b, b + kBands ..
    // of one of the visits that are looked up at once.
    const auto decode_runs = [&]() {
      const bool has = run + lane < end;
      const Run mine = has ? order.runs[run + lane] : Run{};
      const RunWindow window(has ? mine.count : 0);
      for (int32_t base = 0; base < window.total(); base += kBatch) {
        const int count = min(kBatch, window.total() - base);
        const bool there = lane / kBands < count;
        const int32_t i = base + min(lane / kBands, count - 1);
        const int source = window.run_of(i);
        const int32_t tile = __shfl_sync(~0u, mine.first, source) +
                             (i - window.before(source)) * __shfl_sync(~0u, mine.step, source);
        const int32_t slices = __shfl_sync(~0u, mine.slice_count, source);
        const int32_t slice_begin = __shfl_sync(~0u, mine.slice_begin, source);
        int32_t k_begin = 0, k_at = 0, k_width = 0, k_used = 0, bands = 0;
        Band band{};
        if (there) {
          const int64_t* edges = order.kv_edges + tile;
          k_begin = static_cast<int32_t>(edges[0]);
          k_at = static_cast<int32_t>(order.kv_rows[tile]);
          k_width = static_cast<int32_t>(edges[1]) - k_begin;
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
        // What the rows see of the visit: all lanes of it find the same.
        const uint32_t own = ((1u << kBands) - 1) << (lane - b);
        const auto any = [&](bool of_band) {
          return (__ballot_sync(~0u, of_band && b < bands) & own) != 0;
        };
        const auto all_of = [&](const Band& part, int32_t keys) {
          return any(shows_all(part, 0, q_rows, keys));
        };
        const auto some_of = [&](const Band& part) { return any(shows_some(part, 0, q_rows)); };
        uint32_t flags = k_used < C::kTileKv ? Visit::tail : 0;
        const bool all = all_of(band, C::kTileKv), some = some_of(band);
        if (bands > 0 && !all) flags |= some || bands > kBands ? Visit::masked : Visit::hidden;
        const bool all_0 = all_of(of_half(band, 0), kHalfKeys), some_0 = some_of(of_half(band, 0));
        const bool all_1 = all_of(of_half(band, 1), kHalfKeys), some_1 = some_of(of_half(band, 1));
        const bool counted = (flags & Visit::masked) && bands <= kBands;
        const int32_t half_at = counted && all_0 && !some_1   ? k_at
                                : counted && all_1 && !some_0 ? k_at + kHalfKeys
                                                              : kNone;
        const auto put_tile = [&](Visit& visit, int v) {  // from the lanes of visit v
          put_queries(visit);
          if (lane / kBands != v) return;
          visit.bands[b] = band;
          if (b > 0) return;
          visit.flags = flags | (begun ? 0u : Visit::first);
          visit.k_at = {k_at, k_at + kHalfKeys};
          visit.k_begin = k_begin;
          visit.k_width = k_width;
          visit.k_used = k_used;
          visit.band_count = bands;
          visit.slice_begin = slice_begin;
          visit.order = &order;
        };
#pragma unroll 1
        for (int v = 0; v < count; ++v) {
          const uint32_t of_visit = __shfl_sync(~0u, flags, v * kBands);
          const int32_t at = __shfl_sync(~0u, half_at, v * kBands);
          if (of_visit & Visit::hidden) continue;
          if (at == kNone) {
            if (waiting != kNone) publish_halves(0, kNone);
            publish([&](Visit& visit) { put_tile(visit, v); });
            begun = true;
            pairs = !(of_visit & Visit::tail);
          } else if (waiting != kNone) {
            publish_halves(0, at);
          } else {
            waiting = at;
            if (!pairs) publish_halves(begun ? 0 : Visit::first, kNone);
            begun = pairs = true;
          }
        }
      }
    };
    for (; run < end; run += 32) decode_runs();
    if (waiting != kNone) publish_halves(0, kNone);
    if (begun) return;
    publish([&](Visit& visit) {  // that sees nothing: O = 0, LSE = -inf follow by themselves
      put_queries(visit);
      if (lane > 0) return;
      visit.flags = Visit::first | Visit::hidden;
      visit.k_at = {kNone, kNone};
    });
  };
  const auto decode_task = [&](const PlacedTask& placed, int32_t part) {
    const int32_t skipped = part * C::kTileQ;  // rows of each tile
    const OrderView& order = plan.orders[plan.order_of_head[placed.head]];
    const Task task = order.tasks[placed.task];
    for (int32_t c = task.chain_begin; c < task.chain_end; ++c) {
      const Chain& chain = order.chains[c];
      const int32_t q_begin = static_cast<int32_t>(order.q_edges[chain.tile]) + skipped;
      const int32_t q_rows = static_cast<int32_t>(order.q_edges[chain.tile + 1]) - q_begin;
      if (q_rows <= 0) continue;
      if (lane == 0) {
        const int32_t batch = placed.head / plan.kv_heads;
        const int32_t kv_head = placed.head - batch * plan.kv_heads;
        smem.queries = {q_begin,
                        min(q_rows, C::kTileQ),
                        static_cast<int32_t>(order.q_rows[chain.tile]) + skipped,
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
  while (ticket < C::kParts * (plan.unit_count / C::kHeads)) {
    // Asked for now, needed when this unit has been decoded.
    const int32_t next = lane == 0 ? gridDim.x + atomicAdd(next_ticket, 1) : 0;
    const int32_t unit = ticket / C::kParts;
    if constexpr (C::kHeads > 1) {
      decode_task(plan.placed[C::kHeads * unit], ticket % C::kParts);
    } else {
      const int32_t begin = plan.unit_begin ? plan.unit_begin[unit] : unit;
      const int32_t end = plan.unit_begin ? plan.unit_begin[unit + 1] : unit + 1;
      for (int32_t i = begin; i < end; ++i) decode_task(plan.placed[i], ticket % C::kParts);
    }
    ticket = __shfl_sync(~0u, next, 0);
  }
  publish([&](Visit& visit) {
    if (lane > 0) return;
    visit.flags = Visit::stop | Visit::first | Visit::hidden;
    visit.k_at = {kNone, kNone};
  });
}

}  // namespace verbatim::cuda::sm90::fwd
