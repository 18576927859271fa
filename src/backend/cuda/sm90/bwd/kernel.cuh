// The deterministic backward on Hopper: one resident CTA per SM walks the chains of a plan.
//
//   warp            role          waits for                      tells
//   0               producer      {q,do,k,v,chain}_empty         {q,do,k,v,chain,visit}_full
//   1, 2            dQ writers    turn of the row, dq_full[w]    dq_empty[w], signal_full[w]
//   3               signaller     signal_full[w]                 turn of the row, signal_empty[w]
//   4-7, 8-11       consumers     {q,do,k,v}_full, dq_empty[w]   {q,do,k,v}_empty, dq_full[w]
//
//   plan -> producer -> TMA -> {Q, dO, K, V} -> consumers -> dQ (shared) -> writers -> dq_sum (L2)
//                                                   |                          ^          |
//                                                   +-> dK, dV (registers)     +-- turn <-+
//
// In a visit dP runs behind the exponentials of P, and dK behind the store of dQ. Shared memory is
// the limit (docs/kernels/backward-sm90.md), so dV and dK take P^T and dS^T from registers.
#pragma once

#include "backend/cuda/device/recorder.cuh"
#include "backend/cuda/sm90/bwd/config.h"
#include "backend/cuda/sm90/bwd/params.h"
#include "backend/cuda/sm90/fragment.cuh"
#include "backend/cuda/sm90/ptx.cuh"

namespace verbatim::cuda::sm90_bwd {

// --- producer: walks the plan, loads tiles, publishes chains and visits

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

  // Loads rows [q_begin, q_begin + tile_q) of Q or dO, and their LSE or delta.
  const auto load_rows = [&](const CUtensorMap& map, uint64_t* bar, typename C::Element* tile,
                             float* stats, int which, int32_t batch, const Visit& visit) {
    ptx::mbarrier_arrive_expect(bar, C::kRowsBytes);
    CUTE_UNROLL
    for (int c = 0; c < C::kHeadDim; c += 64) {
      ptx::tma_load_4d(&map, bar, tile + c * C::kTileQ, c, visit.q_begin, visit.q_head, batch);
    }
    const int64_t at = static_cast<int64_t>(visit.row) * 2 + which;
    ptx::bulk_load(bar, stats, p.workspace.stats + at * C::kTileQ, C::kStatBytes);
  };
  // V is free before K: the last visit needs it for its second product only.
  const auto load_kv = [&](const Chain90& chain) {
    const auto load = [&](const CUtensorMap& map, uint64_t* empty, uint64_t* full,
                          typename C::Element* tile) {
      ptx::mbarrier_wait(empty, loads % 2 ^ 1);
      ptx::mbarrier_arrive_expect(full, C::kKvBytes);
      CUTE_UNROLL
      for (int c = 0; c < C::kHeadDim; c += 64) {
        ptx::tma_load_4d(&map, full, tile + c * C::kTileKv, c, chain.kv_begin, chain.kv_head,
                         chain.batch);
      }
    };
    load(p.map_v, &smem.v_empty, &smem.v_full, smem.v);
    load(p.map_k, &smem.k_empty, &smem.k_full, smem.k);
    ++loads;
  };
  const auto load_visit = [&](const Chain90& chain, bool first) {
    const Visit& visit = smem.visit[n % kVisitRing];
    const uint32_t stage = n % C::kStages;
    ptx::mbarrier_wait(&smem.q_empty[stage], n / C::kStages % 2 ^ 1);
    load_rows(p.map_q, &smem.q_full[stage], smem.q + stage * C::kTileQ * C::kHeadDim,
              smem.lse[stage], 0, chain.batch, visit);
    if (first) load_kv(chain);  // the first Q travels while the last chain is being written
    ptx::mbarrier_wait(&smem.do_empty[stage], n / C::kStages % 2 ^ 1);
    load_rows(p.map_dout, &smem.do_full[stage], smem.dout + stage * C::kTileQ * C::kHeadDim,
              smem.delta[stage], 1, chain.batch, visit);
  };

  // The visits of up to 32 runs; false for none.
  const auto produce_runs = [&](const OrderView& order, int32_t run, int32_t run_end,
                                const Chain90& chain, bool& first) {
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
      if (lane < kBatch) {
        Visit& visit = smem.visit[(n + lane) % kVisitRing];
        visit.q_begin = static_cast<int32_t>(order.q_edges[q_tile]);
        visit.q_head = chain.kv_head * plan.group + source.q_head;
        visit.row =
            (chain.batch * p.common.sizes.q_heads + visit.q_head) * p.common.hand_off.max_q_tiles +
            q_tile;
        visit.addend = source.addend_of(at);
        visit.slice_begin = source.slice_begin;
        visit.slice_count = source.slice_count;
        if (base + lane < total) ptx::mbarrier_arrive(&smem.visit_full[(n + lane) % kVisitRing]);
      }
      __syncwarp();
      for (int32_t left = min(kBatch, total - base); left > 0; --left, ++n) {
        if (lane == 0) load_visit(chain, first);
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
    Chain90& chain = smem.chain[chains % kChainRing];
    if (lane == 0) {
      ptx::mbarrier_wait(&smem.chain_empty[chains % kChainRing], chains / kChainRing % 2 ^ 1);
      chain.visits = visits;
      chain.kv_begin = static_cast<int32_t>(order.kv_edges[planned.tile]);
      chain.kv_rows = static_cast<int32_t>(order.kv_edges[planned.tile + 1]) - chain.kv_begin;
      chain.batch = placed.head / plan.kv_heads;
      chain.kv_head = placed.head % plan.kv_heads;
      chain.order = plan.order_of_head[placed.head];
      chain.key = placed.head * p.common.hand_off.max_kv_tiles + planned.tile;
      chain.addend = planned.addend;
      chain.addends = planned.addends;
      ptx::mbarrier_arrive(&smem.chain_full[chains % kChainRing]);
    }
    __syncwarp();
    bool first = true;
    for (int32_t run = run_begin; run < run_end; run += 32) {
      produce_runs(order, run, run_end, chain, first);
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
  }
}

// --- dQ writers and their signaller

/// Waits until `turn` reaches `addend`. Gives up when the wait expires, here or elsewhere: the sum
/// is then wrong, and the report says so. `tile` indexes row tiles, or with `of_keys` KV tiles.
__device__ __forceinline__ void wait_for_turn(const BackwardParams& p, const int32_t* turn,
                                              int32_t addend, int32_t tile, bool of_keys) {
  const HandOff& hand_off = p.hand_off;
  const uint64_t start = ptx::global_timer_ns();
  for (uint32_t polls = 1;; ++polls) {
    const int32_t seen = ptx::load_acquire(turn);
    if (seen >= addend) return;
    if (polls % 256 != 0) continue;
    if (*static_cast<volatile int32_t*>(hand_off.aborted) != 0) return;
    if (ptx::global_timer_ns() - start < static_cast<uint64_t>(hand_off.spin_limit_ns)) continue;
    if (atomicCAS(hand_off.aborted, 0, 1) == 0) {
      const int32_t tiles = of_keys ? hand_off.max_kv_tiles : hand_off.max_q_tiles;
      const int32_t head = tile / tiles;  // b * kv_heads + kv_head, or b * q_heads + q_head
      const int32_t group = p.plan.group;
      *hand_off.report = {.expired = 1,
                          .head = of_keys ? head : head / group,
                          .q_head = of_keys ? -1 : head % group,
                          .tile = tile % tiles,
                          .addend = addend,
                          .seen = seen};
      __threadfence_system();
    }
    return;
  }
}

/// One thread per half of the dQ tiles: adds them to dq_sum in the order of their addends.
template <class C, class Recorder>
__device__ void write_dq(typename C::SharedStorage& smem, const Params& p, int half) {
  Recorder recorder(p.record, 1, half == 0);
  uint32_t n = 0;  // visits so far
  for (uint32_t c = 0;; ++c) {
    ptx::mbarrier_wait(&smem.chain_full[c % kChainRing], c / kChainRing % 2);
    const int32_t visits = smem.chain[c % kChainRing].visits;
    for (int32_t v = 0; v < visits; ++v, ++n) {
      const uint32_t buffer = n % C::kStages;
      ptx::mbarrier_wait(&smem.visit_full[n % kVisitRing], n / kVisitRing % 2);
      const Visit& visit = smem.visit[n % kVisitRing];
      const int64_t row = visit.row;
      const int32_t addend = visit.addend;
      float* sum = p.workspace.dq_sum + row * C::kDqFloats + half * (C::kDqFloats / 2);
      int32_t* turn = p.workspace.turns + row * 2 + half;
      const bool stores = p.ordered && addend == 0;  // the first addend needs no zero
      // Before the tile is there: a look at the flag is a trip to L2.
      if (p.ordered && addend > 0) {
        const int64_t ready = recorder.now();
        wait_for_turn(p.common, turn, addend, visit.row, false);
        ptx::fence_async_global();
        recorder.note(RecordKind::wait, ready, visit.row, smem.chain[c % kChainRing].key);
      }
      ptx::mbarrier_wait(&smem.dq_full[half][buffer], n / C::kStages % 2);
      const int64_t begin = recorder.now();
      ptx::fence_async_shared();
      if (stores) {
        ptx::bulk_store(sum, smem.dq[buffer][half], C::kDqHalfBytes);
      } else {
        ptx::bulk_add_f32(sum, smem.dq[buffer][half], C::kDqHalfBytes);
      }
      ptx::bulk_commit();
      ptx::bulk_wait_read();
      ptx::mbarrier_arrive(&smem.dq_empty[half][buffer]);
      ptx::bulk_wait_complete();
      recorder.note(RecordKind::reduce, begin, visit.row, smem.chain[c % kChainRing].key);
      if (p.ordered) {
        // Another thread signals, so that the release is off this thread's chain.
        ptx::fence_async_global();
        ptx::mbarrier_wait(&smem.signal_empty[half], n % 2 ^ 1);
        smem.signal_turn[half] = turn;
        smem.signal_value[half] = addend + 1;
        ptx::mbarrier_arrive(&smem.signal_full[half]);
      }
    }
    if (visits < 0) break;
    ptx::mbarrier_arrive(&smem.chain_empty[c % kChainRing]);
  }
  if (!p.ordered) return;
  ptx::mbarrier_wait(&smem.signal_empty[half], n % 2 ^ 1);
  smem.signal_turn[half] = nullptr;
  ptx::mbarrier_arrive(&smem.signal_full[half]);
}

/// One thread: tells the world which addends are complete. It waits for the halves in turn, for
/// they finish together, and a poll of both would take the bandwidth of shared memory.
template <class C>
__device__ void signal_turns(typename C::SharedStorage& smem) {
  for (uint32_t n = 0;; ++n) {
    for (int half = 0; half < 2; ++half) {
      ptx::mbarrier_wait(&smem.signal_full[half], n % 2);
      int32_t* turn = smem.signal_turn[half];
      const int32_t value = smem.signal_value[half];
      ptx::mbarrier_arrive(&smem.signal_empty[half]);
      if (turn != nullptr) {
        ptx::store_release(turn, value);
      } else if (half == 1) {
        return;
      }
    }
  }
}

// --- consumers

/// C (+)= A B over the K blocks of the operands, asynchronously, as one wgmma group.
template <bool kClear, class Mma, class A, class B, class Acc>
__device__ __forceinline__ void gemm(Mma& mma, const A& a, const B& b, Acc& c) {
  warpgroup_fence_operand(c);
  warpgroup_arrive();
  mma.accumulate_ = kClear ? GMMA::ScaleOut::Zero : GMMA::ScaleOut::One;
  CUTE_UNROLL
  for (int k = 0; k < size<2>(a); ++k) {
    cute::gemm(mma, a(_, _, k), b(_, _, k), c);
    mma.accumulate_ = GMMA::ScaleOut::One;
  }
  warpgroup_commit_batch();
}

/// Bit i of the result: element i of this thread's S^T fragment is visible. Element i is at KV row
/// k_row + 8 * (i / 2 % 2) and query column 8 * (i / 4) + 2 * (lane % 4) + i % 2 of the tile.
template <int kWords>
__device__ __forceinline__ void visible_bits(uint32_t (&bits)[kWords], const OrderView& order,
                                             const Visit& visit, const Chain90& chain, int k_row) {
  constexpr int kTileQ = 64 * kWords, kTileKv = 128;
  const auto clamp = [](int64_t x) {  // beyond the tile all positions are alike
    return static_cast<int>(min(max(x, int64_t{-kTileKv - kTileQ}), int64_t{kTileKv + kTileQ}));
  };
  const int column = 2 * (threadIdx.x % 4);
  CUTE_UNROLL
  for (int w = 0; w < kWords; ++w) bits[w] = 0;
  for (int32_t s = 0; s < max(visit.slice_count, 1); ++s) {
    int q_begin = 0, q_end = kTileQ, k_begin = 0, k_end = chain.kv_rows;  // in the tile
    int lo = -kTileQ, hi = kTileKv;
    if (visit.slice_count > 0) {
      const Slice& slice = order.slices[order.slice_ids[visit.slice_begin + s]];
      q_begin = clamp(slice.q_begin - visit.q_begin);
      q_end = clamp(slice.q_end - visit.q_begin);
      k_begin = clamp(slice.k_begin - chain.kv_begin);
      k_end = min(clamp(slice.k_end - chain.kv_begin), chain.kv_rows);
      const int64_t offset = chain.kv_begin - visit.q_begin;
      lo = clamp(slice.lo - offset);
      hi = clamp(slice.hi - offset);
    }
    CUTE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int k = k_row + 8 * half;
      const int first = max(q_begin, k - hi) - column;  // queries [first, last) see this key
      const int last = k >= k_begin && k < k_end ? min(q_end, k - lo + 1) - column : first;
      CUTE_UNROLL
      for (int j = 0; j < kTileQ / 4; ++j) {
        const int q = 8 * (j / 2) + j % 2;
        const int i = 4 * (j / 2) + 2 * half + j % 2;
        if (q >= first && q < last) bits[i / 32] |= 1u << (i % 32);
      }
    }
  }
}

/// Adds a warpgroup's half of dK and dV to those of the chains before it on the same KV tile: on
/// return the last chain holds the sum, and the others have left theirs for the next.
template <class C, class Acc>
__device__ void share_key_tile(const Params& p, const Chain90& chain, int half, Acc& dk, Acc& dv) {
  constexpr int kFloats = size(Acc{});  // of one thread
  const int thread = threadIdx.x % 128;
  const auto barrier =
      static_cast<uint32_t>(half == 0 ? NamedBarrier::warpgroup_0 : NamedBarrier::warpgroup_1);
  int32_t* turn = p.workspace.key_turns + static_cast<int64_t>(chain.key) * 2 + half;
  auto* sums = reinterpret_cast<float4*>(p.workspace.dkv_sum) +
               (static_cast<int64_t>(chain.key) * 2 + half) * (2 * 128 * kFloats / 4) + thread;
  const bool last = chain.addend + 1 == chain.addends;
  if (chain.addend > 0) {
    if (thread == 0) wait_for_turn(p.common, turn, chain.addend, chain.key, true);
    ptx::named_barrier(barrier, 128);
  }
  const auto add = [&](Acc& acc, float4* sum) {
    CUTE_UNROLL
    for (int i = 0; i < kFloats; i += 4) {
      if (chain.addend > 0) {
        const float4 before = __ldcg(sum + 32 * i);
        acc(i) += before.x;
        acc(i + 1) += before.y;
        acc(i + 2) += before.z;
        acc(i + 3) += before.w;
      }
      if (!last) __stcg(sum + 32 * i, make_float4(acc(i), acc(i + 1), acc(i + 2), acc(i + 3)));
    }
  };
  add(dk, sums);
  add(dv, sums + 32 * kFloats);
  if (last) return;
  __threadfence();
  ptx::named_barrier(barrier, 128);
  if (thread == 0) ptx::store_release(turn, chain.addend + 1);
}

template <class C, class Recorder>
__device__ void consume(typename C::SharedStorage& smem, const Params& p) {
  using Element = typename C::Element;
  constexpr int kScores = C::kTileQ / 2;  // elements of S^T a thread holds
  // Of the consumers; through a shuffle, so that the compiler keeps it and does not ask again.
  const int tid = __shfl_sync(0xffffffff, threadIdx.x - 128, threadIdx.x % 32);
  const int half = __shfl_sync(0xffffffff, tid / 128, 0);  // warpgroup; uniform for descriptors
  const int lane = tid % 32;
  const float scale_log2 = p.common.scalars.scale_log2;
  const int k_row = tid / 32 * 16 + lane / 4;

  Tensor sK = make_tensor(make_smem_ptr(smem.k), typename C::LayoutKv{});          // (TKV,HD)
  Tensor sV = make_tensor(make_smem_ptr(smem.v), typename C::LayoutKv{});          // (TKV,HD)
  Tensor sKt = make_tensor(make_smem_ptr(smem.k), typename C::LayoutKt{});         // (HD,TKV)
  Tensor sQ = make_tensor(make_smem_ptr(smem.q), typename C::LayoutRows{});        // (TQ,HD,stages)
  Tensor sQt = make_tensor(make_smem_ptr(smem.q), typename C::LayoutRowsT{});      // (HD,TQ,stages)
  Tensor sDo = make_tensor(make_smem_ptr(smem.dout), typename C::LayoutRows{});    // (TQ,HD,stages)
  Tensor sDot = make_tensor(make_smem_ptr(smem.dout), typename C::LayoutRowsT{});  // (HD,TQ,stages)
  Tensor sDst = make_tensor(make_smem_ptr(smem.ds), typename C::LayoutDst{});  // (TQ,TKV,stages)

  typename C::MmaSdP mma_sdp;
  typename C::MmaDkv mma_dkv;
  typename C::MmaDq mma_dq;
  auto thr_sdp = mma_sdp.get_thread_slice(half * 128);
  auto thr_dkv = mma_dkv.get_thread_slice(half * 128);
  auto thr_dq = mma_dq.get_thread_slice(half * 128);
  Tensor tSrK = thr_sdp.partition_fragment_A(sK);     // descriptors (MMA,1,HD/16)
  Tensor tPrV = thr_sdp.partition_fragment_A(sV);     // descriptors (MMA,1,HD/16)
  Tensor tSrQ = thr_sdp.partition_fragment_B(sQ);     // descriptors (MMA,1,HD/16,stages)
  Tensor tPrDo = thr_sdp.partition_fragment_B(sDo);   // descriptors (MMA,1,HD/16,stages)
  Tensor tVrDo = thr_dkv.partition_fragment_B(sDot);  // descriptors (MMA,1,TQ/16,stages)
  Tensor tKrQ = thr_dkv.partition_fragment_B(sQt);    // descriptors (MMA,1,TQ/16,stages)
  Tensor tQrDs = thr_dq.partition_fragment_A(sDst);   // descriptors (MMA,1,TKV/16,stages)
  Tensor tQrK = thr_dq.partition_fragment_B(sKt);     // descriptors (MMA,1,TKV/16)

  // Where this lane's row of dS^T starts; 16-byte piece i of the row lies at `^ 16 * i`, blocks of
  // 64 columns lie behind each other (the layout that LayoutDs describes).
  const uint32_t ds_row = ptx::smem_address(smem.ds) + (tid / 32 * 16 + lane % 16) * 128 +
                          ((lane / 16 ^ lane % 8) * 16);

  Tensor tS = partition_fragment_C(mma_sdp, Shape<Int<C::kTileKv>, Int<C::kTileQ>>{});
  Tensor tP = partition_fragment_C(mma_sdp, Shape<Int<C::kTileKv>, Int<C::kTileQ>>{});
  Tensor tK = partition_fragment_C(mma_dkv, Shape<Int<C::kTileKv>, Int<C::kHeadDim>>{});
  Tensor tV = partition_fragment_C(mma_dkv, Shape<Int<C::kTileKv>, Int<C::kHeadDim>>{});
  Tensor tQ = partition_fragment_C(mma_dq, Shape<Int<C::kTileQ>, Int<C::kHeadDim>>{});
  static_assert(size(tS) == kScores && size(tQ) == 32);
  // P^T in 16 bits is the A operand of dV, register by register.
  auto operand = Layout<Shape<Shape<_2, _2, _2>, _1, Int<C::kTileQ / 16>>>{};

  Recorder recorder(p.record, 0, tid == 0);
  const auto release = [&](uint64_t* bar) {  // one arrival a warp
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(bar);
  };
  // Two counters place this thread in every ring: visits and chains so far.
  constexpr auto stage = [](uint32_t n) { return n % C::kStages; };
  constexpr auto phase = [](uint32_t n) { return n / C::kStages % 2; };
  const auto load_stats = [&](const float* from, float2(&to)[kScores / 4]) {
    CUTE_UNROLL
    for (int j = 0; j < kScores / 4; ++j) {
      to[j] = reinterpret_cast<const float2*>(from)[4 * j + lane % 4];
    }
  };
  const auto do_visit = [&](const Chain90& chain, uint32_t n, auto last) {
    const int64_t begin = recorder.now();
    const Visit& visit = smem.visit[n % kVisitRing];
    const int s = stage(n);
    ptx::mbarrier_wait(&smem.q_full[s], phase(n));
    float2 lse[kScores / 4], delta[kScores / 4];
    const bool masked = visit.slice_count > 0 || chain.kv_rows < C::kTileKv;
    load_stats(smem.lse[s], lse);
    gemm<true>(mma_sdp, tSrK, tSrQ(_, _, _, s), tS);
    ptx::mbarrier_wait(&smem.do_full[s], phase(n));
    gemm<true>(mma_sdp, tPrV, tPrDo(_, _, _, s), tP);
    warpgroup_wait<1>();  // S(n)
    warpgroup_fence_operand(tS);
    CUTE_UNROLL
    for (int j = 0; j < kScores; j += 4) {
      const float2 l = lse[j / 4];
      tS(j) = fmaf(tS(j), scale_log2, -l.x);
      tS(j + 1) = fmaf(tS(j + 1), scale_log2, -l.y);
      tS(j + 2) = fmaf(tS(j + 2), scale_log2, -l.x);
      tS(j + 3) = fmaf(tS(j + 3), scale_log2, -l.y);
    }
    if (masked) {
      uint32_t bits[C::kTileQ / 64];
      visible_bits(bits, p.common.plan.orders[chain.order], visit, chain, k_row);
      CUTE_UNROLL
      for (int i = 0; i < kScores; ++i) {
        if (!(bits[i / 32] >> (i % 32) & 1)) tS(i) = -INFINITY;
      }
    }
    // No branch from here to dS, so that the compiler mixes exponentials and arithmetic.
    load_stats(smem.delta[s], delta);
    CUTE_UNROLL
    for (int i = 0; i < kScores; ++i) tS(i) = ptx::exp2_approx(tS(i));
    warpgroup_wait<0>();  // dP(n)
    warpgroup_fence_operand(tP);
    if constexpr (last) release(&smem.v_empty);
    Tensor rP = make_tensor<Element>(operand);   // (MMA,1,TQ/16)
    Tensor rDs = make_tensor<Element>(operand);  // (MMA,1,TQ/16)
    Tensor p_words = recast<uint32_t>(rP);
    Tensor ds_words = recast<uint32_t>(rDs);
    CUTE_UNROLL
    for (int j = 0; j < kScores; j += 4) {
      const float2 d = delta[j / 4];
      ds_words(j / 2) = pack<Element>(tS(j) * (tP(j) - d.x), tS(j + 1) * (tP(j + 1) - d.y));
      ds_words(j / 2 + 1) =
          pack<Element>(tS(j + 2) * (tP(j + 2) - d.x), tS(j + 3) * (tP(j + 3) - d.y));
    }
    CUTE_UNROLL
    for (int i = 0; i < kScores / 2; ++i) p_words(i) = pack<Element>(tS(2 * i), tS(2 * i + 1));
    // One of two buffers: who passed the last barrier has finished with the dS before it.
    CUTE_UNROLL
    for (int i = 0; i < kScores / 8; ++i) {
      const uint32_t row = ds_row + s * C::kDsBytes + i / 4 * (C::kTileKv * 128);
      ptx::store_matrices(row ^ (i % 4 * 32), ds_words(4 * i), ds_words(4 * i + 1),
                          ds_words(4 * i + 2), ds_words(4 * i + 3));
    }
    gemm<false>(mma_dkv, rP, tVrDo(_, _, _, s), tV);
    ptx::fence_async_shared();
    ptx::named_barrier(static_cast<uint32_t>(NamedBarrier::scores_stored), kConsumerThreads);

    gemm<true>(mma_dq, tQrDs(_, _, _, s), tQrK, tQ);
    warpgroup_wait<1>();  // dV(n)
    release(&smem.do_empty[s]);
    gemm<false>(mma_dkv, rDs, tKrQ(_, _, _, s), tK);
    warpgroup_wait<1>();  // dQ(n)
    warpgroup_fence_operand(tQ);
    if constexpr (last) release(&smem.k_empty);
    ptx::mbarrier_wait(&smem.dq_empty[half][s], phase(n) ^ 1);
    float4* dq = reinterpret_cast<float4*>(smem.dq[s][half]) + tid % 128;
    CUTE_UNROLL
    for (int i = 0; i < 8; ++i) {
      dq[128 * i] = make_float4(tQ(4 * i), tQ(4 * i + 1), tQ(4 * i + 2), tQ(4 * i + 3));
    }
    release(&smem.dq_full[half][s]);  // the proxy fence is the writer's: it costs less there
    warpgroup_wait<0>();              // dK(n)
    warpgroup_fence_operand(tK);
    recorder.note(RecordKind::compute, begin, visit.row, chain.key);
    release(&smem.q_empty[s]);
  };

  uint32_t n = 0, loads = 0;  // visits and chains with visits so far
  for (uint32_t c = 0;; ++c) {
    ptx::mbarrier_wait(&smem.chain_full[c % kChainRing], c / kChainRing % 2);
    const int64_t started = recorder.now();
    const Chain90& chain = smem.chain[c % kChainRing];
    const int32_t visits = chain.visits;
    if (visits < 0) break;
    clear(tK);
    clear(tV);
    if (visits > 0) {
      ptx::mbarrier_wait(&smem.k_full, loads % 2);
      ptx::mbarrier_wait(&smem.v_full, loads % 2);
      ++loads;
      recorder.note(RecordKind::start, started, -1, chain.key);
      for (int32_t v = 1; v < visits; ++v) do_visit(chain, n++, std::false_type{});
      do_visit(chain, n++, std::true_type{});
      warpgroup_fence_operand(tV);
    }

    const int64_t ended = recorder.now();
    if (chain.addends > 1) share_key_tile<C>(p, chain, half, tK, tV);
    if (chain.addend + 1 == chain.addends) {
      const auto store = [&](const TensorRef& tensor, const auto& acc, float scale) {
        Element* base = tensor.template at<Element>(chain.batch, chain.kv_begin, chain.kv_head);
        store_rows<Element, C::kHeadDim / 8>(acc, scale, base, tensor.row, k_row, chain.kv_rows);
      };
      store(p.common.dk, tK, p.common.scalars.scale);
      store(p.common.dv, tV, 1.0f);
    }
    recorder.note(RecordKind::finish, ended, -1, chain.key);
    release(&smem.chain_empty[c % kChainRing]);
  }
}

template <class C, class Recorder>
__global__ void __launch_bounds__(kThreads, 1) backward(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) char shared[];
  auto& smem = *reinterpret_cast<typename C::SharedStorage*>(shared);
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);

  if (threadIdx.x == 0) {
    Recorder::start_clock(p.record);
    constexpr uint32_t kConsumerWarps = kConsumerThreads / 32;
    const auto init = [](auto& bars, uint32_t arrivals) {
      for (auto& bar : bars) ptx::mbarrier_init(&bar, arrivals);
    };
    ptx::mbarrier_init(&smem.k_full, 1);
    ptx::mbarrier_init(&smem.v_full, 1);
    ptx::mbarrier_init(&smem.k_empty, kConsumerWarps);
    ptx::mbarrier_init(&smem.v_empty, kConsumerWarps);
    init(smem.chain_full, 1);
    init(smem.chain_empty, kConsumerWarps + 2);
    init(smem.visit_full, 1);
    init(smem.q_full, 1);
    init(smem.q_empty, kConsumerWarps);
    init(smem.do_full, 1);
    init(smem.do_empty, kConsumerWarps);
    for (int half = 0; half < 2; ++half) {
      init(smem.dq_full[half], kConsumerWarps / 2);
      init(smem.dq_empty[half], 1);
    }
    init(smem.signal_full, 1);
    init(smem.signal_empty, 1);
    ptx::fence_barrier_init();
  }
  __syncthreads();

  if (warp < 4) {
    ptx::registers_shrink<24>();
    const int lane = threadIdx.x % 32;
    if (warp == 0) {
      produce<C>(smem, p);
    } else if (warp < 3) {
      if (lane == 0) write_dq<C, Recorder>(smem, p, warp - 1);
    } else if (lane == 0 && p.ordered) {
      signal_turns<C>(smem);
    }
  } else {
    ptx::registers_grow<240>();
    consume<C, Recorder>(smem, p);
    if (threadIdx.x == 128) Recorder::stop_clock(p.record);
  }
}

}  // namespace verbatim::cuda::sm90_bwd
