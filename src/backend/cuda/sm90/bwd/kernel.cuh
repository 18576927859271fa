// The deterministic backward on Hopper: one resident CTA per SM walks the chains of a plan.
//
//   warp            role          waits for                      tells
//   0               producer      q/do/kv_empty, chain_empty     chain_full, q/do/kv_full
//   1, 2            dQ writers    dq_full[w], turn of the row    dq_empty[w], signal_full[w]
//   3               signaller     signal_full[w]                 turn of the row, signal_empty[w]
//   4-7, 8-11       consumers     q/do/kv_full, dq_empty[w]      q/do/kv_empty, dq_full[w]
//
//   plan -> producer -> TMA -> {Q, dO, K, V} -> consumers -> dQ (shared) -> writers -> dq_sum (L2)
//                                                   |                          ^          |
//                                                   +-> dK, dV (registers)     +-- turn <-+
//
// A consumer's visit i keeps the tensor cores busy through its element-wise parts: dP(i) runs
// behind P(i), dV(i) behind dS(i), and dK(i) and S(i + 1) behind the store of dQ(i).
#pragma once

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
  uint32_t chains = 0, n = 0;  // chains and visits so far

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
  // K and V come once the consumers have finished with those of the last chain.
  const auto load_kv = [&](const Chain90& chain) {
    ptx::mbarrier_wait(&smem.kv_empty, chains % 2 ^ 1);
    ptx::mbarrier_arrive_expect(&smem.kv_full, C::kKvBytes);
    CUTE_UNROLL
    for (int c = 0; c < C::kHeadDim; c += 64) {
      ptx::tma_load_4d(&p.map_k, &smem.kv_full, smem.k + c * C::kTileKv, c, chain.kv_begin,
                       chain.kv_head, chain.batch);
      ptx::tma_load_4d(&p.map_v, &smem.kv_full, smem.v + c * C::kTileKv, c, chain.kv_begin,
                       chain.kv_head, chain.batch);
    }
  };
  const auto load_visit = [&](const Chain90& chain, bool first) {
    const Visit& visit = smem.visit[n % kVisitRing];
    const uint32_t q_stage = n % C::kStagesQ, stage = n % C::kStages;
    ptx::mbarrier_wait(&smem.q_empty[q_stage], n / C::kStagesQ % 2 ^ 1);
    load_rows(p.map_q, &smem.q_full[q_stage], smem.q + q_stage * C::kTileQ * C::kHeadDim,
              smem.lse[q_stage], 0, chain.batch, visit);
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
      if (visits == 0) {
        ptx::mbarrier_wait(&smem.kv_empty, chains % 2 ^ 1);
        ptx::mbarrier_arrive(&smem.kv_full);
      }
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
    ptx::mbarrier_wait(&smem.kv_empty, chains % 2 ^ 1);
    ptx::mbarrier_arrive(&smem.kv_full);
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
template <class C>
__device__ void write_dq(typename C::SharedStorage& smem, const Params& p, int half) {
  uint32_t n = 0;  // visits so far
  for (uint32_t c = 0;; ++c) {
    // Not kv_full: its phases alternate, and a writer may be two short chains behind.
    ptx::mbarrier_wait(&smem.chain_full[c % kChainRing], c / kChainRing % 2);
    const int32_t visits = smem.chain[c % kChainRing].visits;
    for (int32_t v = 0; v < visits; ++v, ++n) {
      const uint32_t buffer = n % C::kStages;
      ptx::mbarrier_wait(&smem.dq_full[half][buffer], n / C::kStages % 2);
      ptx::fence_async_shared();
      const Visit& visit = smem.visit[n % kVisitRing];
      const int64_t row = visit.row;
      const int32_t addend = visit.addend;
      float* sum = p.workspace.dq_sum + row * C::kDqFloats + half * (C::kDqFloats / 2);
      int32_t* turn = p.workspace.turns + row * 2 + half;
      if (p.ordered && addend == 0) {
        ptx::bulk_store(sum, smem.dq[buffer][half],
                        C::kDqHalfBytes);  // the first addend needs no zero
      } else {
        if (p.ordered) {
          wait_for_turn(p.common, turn, addend, visit.row, false);
          ptx::fence_async_global();
        }
        ptx::bulk_add_f32(sum, smem.dq[buffer][half], C::kDqHalfBytes);
      }
      ptx::bulk_commit();
      ptx::bulk_wait_read();
      ptx::mbarrier_arrive(&smem.dq_empty[half][buffer]);
      ptx::bulk_wait_complete();
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

/// One thread: tells the world which addends are complete, whichever half comes first.
template <class C>
__device__ void signal_turns(typename C::SharedStorage& smem) {
  uint32_t phases = 0, open = 3;  // bits: half
  while (open != 0) {
    for (int half = 0; half < 2; ++half) {
      if (!(open >> half & 1)) continue;
      if (!ptx::mbarrier_test(&smem.signal_full[half], phases >> half & 1)) continue;
      phases ^= 1 << half;
      int32_t* turn = smem.signal_turn[half];
      const int32_t value = smem.signal_value[half];
      ptx::mbarrier_arrive(&smem.signal_empty[half]);
      if (turn == nullptr) {
        open ^= 1 << half;
      } else {
        ptx::store_release(turn, value);
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

template <class C>
__device__ void consume(typename C::SharedStorage& smem, const Params& p) {
  using Element = typename C::Element;
  constexpr int kScores = C::kTileQ / 2;                   // elements of S^T a thread holds
  const int tid = threadIdx.x - 128;                       // of the consumers
  const int half = __shfl_sync(0xffffffff, tid / 128, 0);  // warpgroup; uniform for descriptors
  const int lane = threadIdx.x % 32;
  const float scale_log2 = p.common.scalars.scale_log2;
  const int k_row = tid / 32 * 16 + lane / 4;

  Tensor sK = make_tensor(make_smem_ptr(smem.k), typename C::LayoutKv{});        // (TKV,HD)
  Tensor sV = make_tensor(make_smem_ptr(smem.v), typename C::LayoutKv{});        // (TKV,HD)
  Tensor sKt = make_tensor(make_smem_ptr(smem.k), typename C::LayoutKt{});       // (HD,TKV)
  Tensor sQ = make_tensor(make_smem_ptr(smem.q), typename C::LayoutQ{});         // (TQ,HD,stages)
  Tensor sQt = make_tensor(make_smem_ptr(smem.q), typename C::LayoutQt{});       // (HD,TQ,stages)
  Tensor sDo = make_tensor(make_smem_ptr(smem.dout), typename C::LayoutDo{});    // (TQ,HD,stages)
  Tensor sDot = make_tensor(make_smem_ptr(smem.dout), typename C::LayoutDot{});  // (HD,TQ,stages)
  Tensor sDs = make_tensor(make_smem_ptr(smem.ds), typename C::LayoutDs{});      // (TKV,TQ)
  Tensor sDst = make_tensor(make_smem_ptr(smem.ds), typename C::LayoutDst{});    // (TQ,TKV)

  typename C::MmaSdP mma_sdp;
  typename C::MmaDv mma_dv;
  typename C::MmaDk mma_dk;
  typename C::MmaDq mma_dq;
  auto thr_sdp = mma_sdp.get_thread_slice(half * 128);
  auto thr_dv = mma_dv.get_thread_slice(half * 128);
  auto thr_dk = mma_dk.get_thread_slice(half * 128);
  auto thr_dq = mma_dq.get_thread_slice(half * 128);
  Tensor tSrK = thr_sdp.partition_fragment_A(sK);    // descriptors (MMA,1,HD/16)
  Tensor tPrV = thr_sdp.partition_fragment_A(sV);    // descriptors (MMA,1,HD/16)
  Tensor tSrQ = thr_sdp.partition_fragment_B(sQ);    // descriptors (MMA,1,HD/16,stages)
  Tensor tPrDo = thr_sdp.partition_fragment_B(sDo);  // descriptors (MMA,1,HD/16,stages)
  Tensor tVrDo = thr_dv.partition_fragment_B(sDot);  // descriptors (MMA,1,TQ/16,stages)
  Tensor tKrQ = thr_dv.partition_fragment_B(sQt);    // descriptors (MMA,1,TQ/16,stages)
  Tensor tKrDs = thr_dk.partition_fragment_A(sDs);
  Tensor tQrDs = thr_dq.partition_fragment_A(sDst);  // descriptors (MMA,1,TKV/16)
  Tensor tQrK = thr_dq.partition_fragment_B(sKt);    // descriptors (MMA,1,TKV/16)

  auto copy_ds = make_tiled_copy_C(Copy_Atom<SM90_U32x4_STSM_N, Element>{}, mma_sdp);
  auto thr_copy_ds = copy_ds.get_thread_slice(tid);
  Tensor tDsD = thr_copy_ds.partition_D(sDs);  // (CPY,1,TQ/16)

  Tensor tS = partition_fragment_C(mma_sdp, Shape<Int<C::kTileKv>, Int<C::kTileQ>>{});
  Tensor tP = partition_fragment_C(mma_sdp, Shape<Int<C::kTileKv>, Int<C::kTileQ>>{});
  Tensor tK = partition_fragment_C(mma_dk, Shape<Int<C::kTileKv>, Int<C::kHeadDim>>{});
  Tensor tV = partition_fragment_C(mma_dv, Shape<Int<C::kTileKv>, Int<C::kHeadDim>>{});
  Tensor tQ = partition_fragment_C(mma_dq, Shape<Int<C::kTileQ>, Int<C::kHeadDim>>{});
  static_assert(size(tS) == kScores && size(tQ) == 32);
  // P^T in 16 bits is the A operand of dV, register by register.
  auto operand = Layout<Shape<Shape<_2, _2, _2>, _1, Int<C::kTileQ / 16>>>{};

  const auto release = [&](uint64_t* bar) {  // one arrival a warp
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(bar);
  };
  // Two counters place this thread in every ring: visits and chains so far.
  constexpr auto stage = [](uint32_t n) { return n % C::kStages; };
  constexpr auto phase = [](uint32_t n) { return n / C::kStages % 2; };
  constexpr auto q_stage = [](uint32_t n) { return n % C::kStagesQ; };
  constexpr auto q_phase = [](uint32_t n) { return n / C::kStagesQ % 2; };
  const auto issue_scores = [&](uint32_t n) {
    ptx::mbarrier_wait(&smem.q_full[q_stage(n)], q_phase(n));
    gemm<true>(mma_sdp, tSrK, tSrQ(_, _, _, q_stage(n)), tS);
  };

  // On entry S(n) is in tS; on exit S(n + 1) is, if there is one.
  const auto do_visit = [&](const Chain90& chain, uint32_t n, auto has_next) {
    const Visit& visit = smem.visit[n % kVisitRing];
    ptx::mbarrier_wait(&smem.do_full[stage(n)], phase(n));
    gemm<true>(mma_sdp, tPrV, tPrDo(_, _, _, stage(n)), tP);

    const float2* lse = reinterpret_cast<const float2*>(smem.lse[q_stage(n)]) + lane % 4;
    CUTE_UNROLL
    for (int j = 0; j < kScores; j += 4) {
      const float2 l = lse[j];
      tS(j) = ptx::exp2_approx(fmaf(tS(j), scale_log2, -l.x));
      tS(j + 1) = ptx::exp2_approx(fmaf(tS(j + 1), scale_log2, -l.y));
      tS(j + 2) = ptx::exp2_approx(fmaf(tS(j + 2), scale_log2, -l.x));
      tS(j + 3) = ptx::exp2_approx(fmaf(tS(j + 3), scale_log2, -l.y));
    }
    if (visit.slice_count > 0 || chain.kv_rows < C::kTileKv) {
      uint32_t bits[C::kTileQ / 64];
      visible_bits(bits, p.common.plan.orders[chain.order], visit, chain, k_row);
      CUTE_UNROLL
      for (int i = 0; i < kScores; ++i) {
        if (!(bits[i / 32] >> (i % 32) & 1)) tS(i) = 0;
      }
    }
    Tensor rP = make_tensor<Element>(operand);  // (MMA,1,TQ/16)
    const auto issue_dv = [&] {
      Tensor words = recast<uint32_t>(rP);
      CUTE_UNROLL
      for (int i = 0; i < kScores / 2; ++i) words(i) = pack<Element>(tS(2 * i), tS(2 * i + 1));
      gemm<false>(mma_dv, rP, tVrDo(_, _, _, stage(n)), tV);
    };
    if constexpr (C::kEarlyDv) issue_dv();
    warpgroup_wait<C::kEarlyDv ? 1 : 0>();  // dP(n)
    warpgroup_fence_operand(tP);
    const float2* delta = reinterpret_cast<const float2*>(smem.delta[stage(n)]) + lane % 4;
    Tensor rDs = make_tensor<Element>(tS.layout());  // (MMA,1,1)
    Tensor rDs_words = recast<uint32_t>(rDs);
    CUTE_UNROLL
    for (int j = 0; j < kScores; j += 4) {
      const float2 d = delta[j];
      rDs_words(j / 2) = pack<Element>(tS(j) * (tP(j) - d.x), tS(j + 1) * (tP(j + 1) - d.y));
      rDs_words(j / 2 + 1) =
          pack<Element>(tS(j + 2) * (tP(j + 2) - d.x), tS(j + 3) * (tP(j + 3) - d.y));
    }
    if constexpr (!C::kEarlyDv) issue_dv();
    ptx::mbarrier_wait(&smem.ds_empty, n % 2 ^ 1);
    cute::copy(copy_ds, thr_copy_ds.retile_S(rDs), tDsD);
    ptx::fence_async_shared();
    ptx::named_barrier(static_cast<uint32_t>(NamedBarrier::scores_stored), kConsumerThreads);

    gemm<true>(mma_dq, tQrDs, tQrK, tQ);
    warpgroup_wait<1>();  // dV(n)
    release(&smem.do_empty[stage(n)]);
    gemm<false>(mma_dk, tKrDs, tKrQ(_, _, _, q_stage(n)), tK);
    if constexpr (has_next) issue_scores(n + 1);
    warpgroup_wait<has_next ? 2 : 1>();  // dQ(n)
    warpgroup_fence_operand(tQ);
    ptx::mbarrier_wait(&smem.dq_empty[half][stage(n)], phase(n) ^ 1);
    float4* dq = reinterpret_cast<float4*>(smem.dq[stage(n)][half]) + tid % 128;
    CUTE_UNROLL
    for (int i = 0; i < 8; ++i) {
      dq[128 * i] = make_float4(tQ(4 * i), tQ(4 * i + 1), tQ(4 * i + 2), tQ(4 * i + 3));
    }
    release(&smem.dq_full[half][stage(n)]);  // the proxy fence is the writer's: it costs less there
    warpgroup_wait<0>();                     // dK(n), S(n + 1)
    warpgroup_fence_operand(tS);
    warpgroup_fence_operand(tK);
    release(&smem.q_empty[q_stage(n)]);
    release(&smem.ds_empty);
  };

  uint32_t n = 0;  // visits so far
  for (uint32_t c = 0;; ++c) {
    ptx::mbarrier_wait(&smem.kv_full, c % 2);
    const Chain90& chain = smem.chain[c % kChainRing];
    const int32_t visits = chain.visits;
    if (visits < 0) break;
    clear(tK);
    clear(tV);
    if (visits > 0) {
      issue_scores(n);
      warpgroup_wait<0>();
      warpgroup_fence_operand(tS);
      for (int32_t v = 1; v < visits; ++v) do_visit(chain, n++, std::true_type{});
      do_visit(chain, n++, std::false_type{});
      warpgroup_fence_operand(tV);
    }
    release(&smem.kv_empty);

    if (chain.addends > 1) share_key_tile<C>(p, chain, half, tK, tV);
    if (chain.addend + 1 == chain.addends) {
      const auto store = [&](const TensorRef& tensor, const auto& acc, float scale) {
        Element* base = tensor.template at<Element>(chain.batch, chain.kv_begin, chain.kv_head);
        store_rows<Element, C::kHeadDim / 8>(acc, scale, base, tensor.row, k_row, chain.kv_rows);
      };
      store(p.common.dk, tK, p.common.scalars.scale);
      store(p.common.dv, tV, 1.0f);
    }
    release(&smem.chain_empty[c % kChainRing]);
  }
}

template <class C>
__global__ void __launch_bounds__(kThreads, 1) backward(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) char shared[];
  auto& smem = *reinterpret_cast<typename C::SharedStorage*>(shared);
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);

  if (threadIdx.x == 0) {
    constexpr uint32_t kConsumerWarps = kConsumerThreads / 32;
    const auto init = [](auto& bars, uint32_t arrivals) {
      for (auto& bar : bars) ptx::mbarrier_init(&bar, arrivals);
    };
    ptx::mbarrier_init(&smem.kv_full, 1);
    ptx::mbarrier_init(&smem.kv_empty, kConsumerWarps);
    init(smem.chain_full, 1);
    init(smem.chain_empty, kConsumerWarps + 2);
    init(smem.q_full, 1);
    init(smem.q_empty, kConsumerWarps);
    init(smem.do_full, 1);
    init(smem.do_empty, kConsumerWarps);
    ptx::mbarrier_init(&smem.ds_empty, kConsumerWarps);
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
      if (lane == 0) write_dq<C>(smem, p, warp - 1);
    } else if (lane == 0 && p.ordered) {
      signal_turns<C>(smem);
    }
  } else {
    ptx::registers_grow<240>();
    consume<C>(smem, p);
  }
}

}  // namespace verbatim::cuda::sm90_bwd
