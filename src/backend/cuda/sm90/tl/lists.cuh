// The visits of a kernel for Hopper whose blocks of keys an index tensor names (SelectedParams): a
// warp reads lists ahead of the others, which walk what it leaves as along a plan (walk.cuh).
#pragma once

#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm90/tl/walk.cuh"

namespace verbatim::cuda::sm90::tl {

/// Query heads that share a list are neighbours, since they read the same blocks.
__device__ inline QueryTile queries_of(const SelectedParams& p, int64_t chain) {
  const int32_t group = p.group(), of_list = p.chains_of_list();
  const auto list = static_cast<int32_t>(chain / of_list);
  const int32_t tile = list % p.q_tiles, head = list / p.q_tiles;
  const int32_t batch = head / p.sizes.kv_heads, kv_head = head % p.sizes.kv_heads;
  const int32_t begin = p.q_edges[tile];
  const int32_t q_head = kv_head * group + static_cast<int32_t>(chain % of_list);
  return {.begin = begin,
          .rows = p.by_query ? group : p.q_edges[tile + 1] - begin,
          .at = p.by_query ? q_head : begin,
          .q_head = p.by_query ? begin : q_head,
          .kv_head = kv_head,
          .batch = batch,
          .head = head,
          .tile = tile};
}

/// The visit of `queries` to the keys [begin, end).
template <class C>
__device__ void describe(typename C::Visit& visit, const QueryTile& queries, int32_t begin,
                         int32_t end, const SelectedParams& p) {
  using Visit = typename C::Visit;
  // Rows that are heads all see the same keys.
  if (p.by_query) end = max(min(end, queries.begin + p.diagonal + 1), begin);
  const int32_t width = end - begin;
  const Slice seen{.q_begin = queries.begin,
                   .q_end = int64_t{queries.begin} + C::kTileQ,
                   .k_begin = begin,
                   .k_end = end,
                   .lo = Slice::kNoLow,
                   .hi = p.by_query ? Slice::kNoHigh : int64_t{p.diagonal}};
  const Band band = make_band(seen, queries.begin, begin, width);
  visit.queries = queries;
  visit.k_begin = visit.k_at = begin;
  visit.k_width = width;
  visit.k_used = max(min(width, band.hi + queries.rows), 0);
  visit.band_count = 1;
  visit.bands[0] = band;
#pragma unroll
  for (int group = 0; group < C::kConsumers; ++group) {
    const int32_t first = fwd::kRows * group, stop = min(first + fwd::kRows, queries.rows);
    visit.flags[group] = first >= stop || !fwd::shows_some(band, first, stop) ? Visit::hidden
                         : fwd::shows_all(band, first, stop, C::kTileKv)      ? 0
                                                                              : Visit::masked;
  }
}

/// Decoder warp: publishes the visits of every gridDim.x-th chain. A lane has an entry of its list.
template <class C>
__device__ void decode(typename C::SharedStorage& smem, const SelectedParams& p) {
  using Visit = typename C::Visit;
  const int lane = threadIdx.x % 32;
  Ring<fwd::kVisitRing> ring;
  // By one lane.
  const auto publish = [&](bool own, auto&& fill) {
    wait_empty(smem.visit_empty, ring);
    if (own) {
      fill(smem.visit[ring.slot()]);
      ptx::mbarrier_arrive(&smem.visit_full[ring.slot()]);
    }
    __syncwarp();
    ring.advance();
  };
  const auto mark = [](Visit& visit, uint32_t flags) {
    for (uint32_t& each : visit.flags) each = flags;
  };

  const int32_t of_list = p.chains_of_list();
  const int64_t chains = p.chains();
#pragma unroll 1
  for (int64_t chain = blockIdx.x; chain < chains; chain += gridDim.x) {
    const QueryTile queries = queries_of(p, chain);
    const int32_t* list = p.blocks + chain / of_list * p.room;
    uint32_t first = Visit::first;
    int count = 32;
#pragma unroll 1
    for (int32_t at = 0; count == 32; at += 32) {
      const int32_t block = at + lane < p.room ? list[at + lane] : -1;
      const int32_t begin = block < 0 ? 0 : p.kv_edges[block];
      const int32_t end = block < 0 ? 0 : p.kv_edges[block + 1];
      const uint32_t ended = __ballot_sync(~0u, block < 0);
      count = ended == 0 ? 32 : __ffs(static_cast<int>(ended)) - 1;
#pragma unroll 1
      for (int v = 0; v < count; ++v) {
        publish(lane == v, [&](Visit& visit) {
          describe<C>(visit, queries, begin, end, p);
          for (uint32_t& flags : visit.flags) flags |= first;
        });
        first = 0;
      }
    }
    if (first)  // a visit that sees nothing: O = 0, LSE = -inf follow by themselves
      publish(lane == 0, [&](Visit& visit) {
        visit.queries = queries;
        mark(visit, Visit::first | Visit::empty | Visit::hidden);
      });
  }
  publish(lane == 0,
          [&](Visit& visit) { mark(visit, Visit::stop | Visit::first | Visit::hidden); });
}

/// Starts a kernel on as many CTAs as fit at once, or as there are chains.
template <class Params, class Maps>
cudaError_t launch_chains(void (*kernel)(Params, Maps), int threads, int64_t shared_bytes,
                          cudaStream_t stream, const Params& p, const Maps& maps) {
  int resident = 0, device = 0, multiprocessors = 0;
  cudaError_t status = residents_of(kernel, threads, shared_bytes, &resident);
  if (status == cudaSuccess) status = cudaGetDevice(&device);
  if (status == cudaSuccess)
    status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (status != cudaSuccess) return status;
  return launch_blocks(kernel, std::min<int64_t>(p.chains(), int64_t{resident} * multiprocessors),
                       threads, shared_bytes, false, stream, p, maps);
}

}  // namespace verbatim::cuda::sm90::tl
