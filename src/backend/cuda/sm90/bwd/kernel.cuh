// The deterministic backward on Hopper: one resident CTA per SM walks the chains of a plan.
//
//   warp            role          waits for                      tells
//   0               producer      q/do/kv_empty, chain_empty     q/do/kv_full
//   1, 2            dQ writers    dq_full[w], flag of the row    dq_empty[w], signal_full[w]
//   3 (lanes 0, 1)  signallers    signal_full[w]                 flag of the row, signal_empty[w]
//   4-7, 8-11       consumers     q/do/kv_full, dq_empty[w]      q/do/kv_empty, dq_full[w]
//
//   plan -> producer -> TMA -> {Q, dO, K, V} -> consumers -> dQ (shared) -> writers -> dq_sum (L2)
//                                                   |                          ^          |
//                                                   +-> dK, dV (registers)     +-- flag <-+
//
// A consumer's visit i keeps the tensor cores busy through its element-wise parts: dP(i) runs
// behind P(i), dV(i) behind dS(i), and dK(i) and S(i + 1) behind the store of dQ(i).
#pragma once

#include "backend/cuda/sm90/bwd/config.h"
#include "backend/cuda/sm90/bwd/params.h"
#include "backend/cuda/sm90/ptx.cuh"
#include "core/dropout.h"

namespace verbatim::cuda::sm90_bwd {

// --- producer: walks the plan, loads tiles, publishes chains and visits

template <class C>
__device__ void produce(typename C::SharedStorage& smem, const Params& p) {
  uint32_t chains = 0, n = 0;  // chains and visits so far
  const PlanView& plan = p.plan;

  // Loads rows [q_begin, q_begin + tile_q) of Q or dO, and their LSE or delta.
  const auto load_rows = [&](const CUtensorMap& map, uint64_t* bar, typename C::Element* tile,
                             float* stats, int which, const Chain90& chain, const Visit& visit) {
    ptx::mbarrier_arrive_expect(bar, C::kRowsBytes);
    CUTE_UNROLL
    for (int c = 0; c < C::kHeadDim; c += 64) {
      ptx::tma_load_4d(&map, bar, tile + c * C::kTileQ, c, visit.q_begin, visit.q_head,
                       chain.batch);
    }
    const int64_t at = static_cast<int64_t>(visit.row) * 2 + which;
    ptx::bulk_load(bar, stats, p.stats + at * C::kTileQ, C::kStatBytes);
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
  const auto next_slot = [&]() -> Chain90& {
    ptx::mbarrier_wait(&smem.chain_empty[chains % kChainRing], chains / kChainRing % 2 ^ 1);
    return smem.chain[chains % kChainRing];
  };
  const auto open_empty = [&] {  // a chain without visits, or the end
    ptx::mbarrier_wait(&smem.kv_empty, chains % 2 ^ 1);
    ptx::mbarrier_arrive(&smem.kv_full);
    ++chains;
  };

  for (;;) {
    const int32_t ticket = atomicAdd(p.ticket, 1);
    if (ticket >= plan.placed_count) break;
    const PlacedTask placed = plan.placed[ticket];
    const int32_t order_index = plan.order_of_head[placed.head];
    const OrderView& order = plan.orders[order_index];
    const Task task = order.tasks[placed.task];
    for (int32_t c = task.chain_begin; c < task.chain_end; ++c) {
      const Chain& planned = order.chains[c];
      Chain90& chain = next_slot();
      chain.kv_begin = static_cast<int32_t>(order.kv_edges[planned.tile]);
      chain.kv_rows = static_cast<int32_t>(order.kv_edges[planned.tile + 1]) - chain.kv_begin;
      chain.batch = placed.head / plan.kv_heads;
      chain.kv_head = placed.head % plan.kv_heads;
      chain.order = order_index;
      int32_t visits = 0;
      for (int32_t r = planned.run_begin; r < planned.run_end; ++r) visits += order.runs[r].count;
      chain.visits = visits;
      if (visits == 0) {
        open_empty();
        continue;
      }
      bool opened = false;
      for (int32_t r = planned.run_begin; r < planned.run_end; ++r) {
        const Run& run = order.runs[r];
        for (int32_t i = 0; i < run.count; ++i, ++n) {
          const uint32_t stage = n % C::kStages;
          const uint32_t free = n / C::kStages % 2 ^ 1;
          ptx::mbarrier_wait(&smem.q_empty[stage], free);
          Visit& visit = smem.visit[n % kVisitRing];
          const int32_t q_tile = run.tile(i);
          visit.q_begin = static_cast<int32_t>(order.q_edges[q_tile]);
          visit.q_head = chain.kv_head * plan.group + run.q_head;
          visit.row = (chain.batch * p.q_heads + visit.q_head) * p.max_q_tiles + q_tile;
          visit.addend = run.addend_of(i);
          visit.slice_begin = run.slice_begin;
          visit.slice_count = run.slice_count;
          load_rows(p.map_q, &smem.q_full[stage], smem.q + stage * C::kTileQ * C::kHeadDim,
                    smem.lse[stage], 0, chain, visit);
          // The first Q travels while the last chain is being written.
          if (!opened) load_kv(chain);
          opened = true;
          ptx::mbarrier_wait(&smem.do_empty[stage], free);
          load_rows(p.map_dout, &smem.do_full[stage], smem.dout + stage * C::kTileQ * C::kHeadDim,
                    smem.delta[stage], 1, chain, visit);
        }
      }
      ++chains;
    }
  }
  next_slot().visits = -1;
  open_empty();
}

// --- dQ writers and their signallers

/// Waits until `row` has `addend` complete addends. False: the wait expired here or elsewhere.
__device__ __forceinline__ bool wait_for_turn(const Params& p, const int32_t* flag,
                                              const Visit& visit) {
  int32_t seen = ptx::load_acquire(flag);
  if (seen >= visit.addend) return true;
  const int64_t start = clock64();
  while ((seen = ptx::load_acquire(flag)) < visit.addend) {
    if (clock64() - start < p.spin_cycles && *static_cast<volatile int32_t*>(p.error) == 0)
      continue;
    if (atomicCAS(p.error, 0, 1) == 0) {
      p.error[1] = visit.row;
      p.error[2] = visit.addend;
      p.error[3] = seen;
    }
    return false;
  }
  return true;
}

/// One thread per half of the dQ tiles: adds them to dq_sum in the order of their addends.
template <class C>
__device__ void write_dq(typename C::SharedStorage& smem, const Params& p, int half) {
  uint32_t n = 0;  // visits so far
  for (uint32_t c = 0;; ++c) {
    ptx::mbarrier_wait(&smem.kv_full, c % 2);
    const int32_t visits = smem.chain[c % kChainRing].visits;
    for (int32_t v = 0; v < visits; ++v, ++n) {
      ptx::mbarrier_wait(&smem.dq_full[half], n % 2);
      const Visit& visit = smem.visit[n % kVisitRing];
      const int64_t row = visit.row;
      const int32_t addend = visit.addend;
      float* sum = p.dq_sum + row * C::kDqFloats + half * (C::kDqFloats / 2);
      int32_t* flag = p.flags + row * 2 + half;
      if (p.ordered && addend == 0) {
        ptx::bulk_store(sum, smem.dq[half], C::kDqHalfBytes);  // the first addend needs no zero
      } else {
        if (p.ordered) {
          wait_for_turn(p, flag, visit);
          ptx::fence_async_global();
        }
        ptx::bulk_add_f32(sum, smem.dq[half], C::kDqHalfBytes);
      }
      ptx::bulk_commit();
      ptx::bulk_wait_read();
      ptx::mbarrier_arrive(&smem.dq_empty[half]);
      ptx::bulk_wait_complete();
      if (p.ordered) {
        // Another thread signals, so that the release is off this thread's chain.
        ptx::fence_async_global();
        ptx::mbarrier_wait(&smem.signal_empty[half], n % 2 ^ 1);
        smem.signal_flag[half] = flag;
        smem.signal_value[half] = addend + 1;
        ptx::mbarrier_arrive(&smem.signal_full[half]);
      }
    }
    if (visits < 0) break;
    ptx::mbarrier_arrive(&smem.chain_empty[c % kChainRing]);
  }
  if (!p.ordered) return;
  ptx::mbarrier_wait(&smem.signal_empty[half], n % 2 ^ 1);
  smem.signal_flag[half] = nullptr;
  ptx::mbarrier_arrive(&smem.signal_full[half]);
}

/// One thread per half: tells the world that an addend is complete.
template <class C>
__device__ void signal_dq(typename C::SharedStorage& smem, int half) {
  for (uint32_t phase = 0;; phase ^= 1) {
    ptx::mbarrier_wait(&smem.signal_full[half], phase);
    int32_t* flag = smem.signal_flag[half];
    const int32_t value = smem.signal_value[half];
    ptx::mbarrier_arrive(&smem.signal_empty[half]);
    if (flag == nullptr) return;
    ptx::store_release(flag, value);
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

/// Two floats as a pair of T, rounded to nearest even.
template <class T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t packed;
  if constexpr (std::is_same_v<T, cutlass::bfloat16_t>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

/// Transposes a 4 x 4 matrix of words held by the four lanes of a quad (lane l: column l).
__device__ __forceinline__ void transpose_quad(uint32_t (&w)[4], int lane) {
  const bool odd = lane & 1, high = lane & 2;
  CUTE_UNROLL
  for (int i = 0; i < 4; i += 2) {  // exchange with the neighbour inside each pair of words
    const uint32_t got = __shfl_xor_sync(0xffffffff, odd ? w[i] : w[i + 1], 1);
    (odd ? w[i] : w[i + 1]) = got;
  }
  CUTE_UNROLL
  for (int i = 0; i < 2; ++i) {  // and the pairs with the other half of the quad
    const uint32_t got = __shfl_xor_sync(0xffffffff, high ? w[i] : w[i + 2], 2);
    (high ? w[i] : w[i + 2]) = got;
  }
}

/// Writes rows `row` and `row + 8` of a wgmma accumulator of 8 * kBlocks columns, 16 bytes a lane.
/// `base` is the first element of the tile's row 0; rows at or beyond `rows` are left alone.
template <class T, int kBlocks, class Acc>
__device__ __forceinline__ void store_rows(const Acc& acc, float scale, T* base, int64_t stride,
                                           int row, int rows) {
  const int lane = threadIdx.x % 4;
  CUTE_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int r = row + 8 * half;
    CUTE_UNROLL
    for (int block = 0; block < kBlocks; block += 4) {
      uint32_t words[4];
      CUTE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int at = 4 * (block + i) + 2 * half;
        words[i] = pack<T>(acc(at) * scale, acc(at + 1) * scale);
      }
      transpose_quad(words, lane);
      if (r < rows) {
        *reinterpret_cast<uint4*>(base + r * stride + 8 * (block + lane)) =
            make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
  }
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

template <class C>
__device__ void consume(typename C::SharedStorage& smem, const Params& p) {
  using Element = typename C::Element;
  constexpr int kScores = C::kTileQ / 2;                   // elements of S^T a thread holds
  const int tid = threadIdx.x - 128;                       // of the consumers
  const int half = __shfl_sync(0xffffffff, tid / 128, 0);  // warpgroup; uniform for descriptors
  const int lane = threadIdx.x % 32;
  const int k_row = tid / 32 * 16 + lane / 4;

  Tensor sK = make_tensor(make_smem_ptr(smem.k), typename C::LayoutKv{});        // (TKV,HD)
  Tensor sV = make_tensor(make_smem_ptr(smem.v), typename C::LayoutKv{});        // (TKV,HD)
  Tensor sKt = make_tensor(make_smem_ptr(smem.k), typename C::LayoutKt{});       // (HD,TKV)
  Tensor sQ = make_tensor(make_smem_ptr(smem.q), typename C::LayoutQ{});         // (TQ,HD,stages)
  Tensor sQt = make_tensor(make_smem_ptr(smem.q), typename C::LayoutQt{});       // (HD,TQ,stages)
  Tensor sDo = make_tensor(make_smem_ptr(smem.dout), typename C::LayoutDo{});    // (TQ,HD,stages)
  Tensor sDot = make_tensor(make_smem_ptr(smem.dout), typename C::LayoutDot{});  // (HD,TQ,stages)
  Tensor sDs = make_tensor(make_smem_ptr(smem.ds), typename C::LayoutDs{});      // (TKV,TQ,stages)
  Tensor sDst = make_tensor(make_smem_ptr(smem.ds), typename C::LayoutDst{});    // (TQ,TKV,stages)

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
  Tensor tQrDs = thr_dq.partition_fragment_A(sDst);  // descriptors (MMA,1,TKV/16,stages)
  Tensor tQrK = thr_dq.partition_fragment_B(sKt);    // descriptors (MMA,1,TKV/16)

  auto copy_ds = make_tiled_copy_C(Copy_Atom<SM90_U32x4_STSM_N, Element>{}, mma_sdp);
  auto thr_copy_ds = copy_ds.get_thread_slice(tid);
  Tensor tDsD = thr_copy_ds.partition_D(sDs);  // (CPY,1,TQ/16,stages)

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
  const auto issue_scores = [&](uint32_t n) {
    ptx::mbarrier_wait(&smem.q_full[stage(n)], phase(n));
    gemm<true>(mma_sdp, tSrK, tSrQ(_, _, _, stage(n)), tS);
  };

  // On entry S(n) is in tS; on exit S(n + 1) is, if there is one.
  const auto do_visit = [&](const Chain90& chain, uint32_t n, auto has_next) {
    const Visit& visit = smem.visit[n % kVisitRing];
    ptx::mbarrier_wait(&smem.do_full[stage(n)], phase(n));
    gemm<true>(mma_sdp, tPrV, tPrDo(_, _, _, stage(n)), tP);

    const float2* lse = reinterpret_cast<const float2*>(smem.lse[stage(n)]) + lane % 4;
    CUTE_UNROLL
    for (int j = 0; j < kScores; j += 4) {
      const float2 l = lse[j];
      tS(j) = ptx::exp2_approx(fmaf(tS(j), p.scale_log2, -l.x));
      tS(j + 1) = ptx::exp2_approx(fmaf(tS(j + 1), p.scale_log2, -l.y));
      tS(j + 2) = ptx::exp2_approx(fmaf(tS(j + 2), p.scale_log2, -l.x));
      tS(j + 3) = ptx::exp2_approx(fmaf(tS(j + 3), p.scale_log2, -l.y));
    }
    if (visit.slice_count > 0 || chain.kv_rows < C::kTileKv) {
      uint32_t bits[C::kTileQ / 64];
      visible_bits(bits, p.plan.orders[chain.order], visit, chain, k_row);
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
    cute::copy(copy_ds, thr_copy_ds.retile_S(rDs), tDsD(_, _, _, stage(n)));
    ptx::fence_async_shared();
    ptx::named_barrier(static_cast<uint32_t>(NamedBarrier::scores_stored), kConsumerThreads);

    gemm<true>(mma_dq, tQrDs(_, _, _, stage(n)), tQrK, tQ);
    warpgroup_wait<1>();  // dV(n)
    release(&smem.do_empty[stage(n)]);
    gemm<false>(mma_dk, tKrDs(_, _, _, stage(n)), tKrQ(_, _, _, stage(n)), tK);
    if constexpr (has_next) issue_scores(n + 1);
    warpgroup_wait<has_next ? 2 : 1>();  // dQ(n)
    warpgroup_fence_operand(tQ);
    ptx::mbarrier_wait(&smem.dq_empty[half], n % 2 ^ 1);
    float4* dq = reinterpret_cast<float4*>(smem.dq[half]) + tid % 128;
    CUTE_UNROLL
    for (int i = 0; i < 8; ++i) {
      dq[128 * i] = make_float4(tQ(4 * i), tQ(4 * i + 1), tQ(4 * i + 2), tQ(4 * i + 3));
    }
    ptx::fence_async_shared();
    release(&smem.dq_full[half]);
    warpgroup_wait<0>();  // dK(n), S(n + 1)
    warpgroup_fence_operand(tS);
    warpgroup_fence_operand(tK);
    release(&smem.q_empty[stage(n)]);
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

    const auto store = [&](const TensorArg& arg, const auto& acc, float scale) {
      auto* base = static_cast<Element*>(arg.data) + chain.batch * arg.batch +
                   chain.kv_begin * arg.length + chain.kv_head * arg.heads;
      store_rows<Element, C::kHeadDim / 8>(acc, scale, base, arg.length, k_row, chain.kv_rows);
    };
    store(p.dk, tK, p.scale);
    store(p.dv, tV, 1.0f);
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
    init(smem.chain_empty, kConsumerWarps + 2);
    init(smem.q_full, 1);
    init(smem.q_empty, kConsumerWarps);
    init(smem.do_full, 1);
    init(smem.do_empty, kConsumerWarps);
    init(smem.dq_full, kConsumerWarps / 2);
    init(smem.dq_empty, 1);
    init(smem.signal_full, 1);
    init(smem.signal_empty, 1);
    ptx::fence_barrier_init();
  }
  __syncthreads();

  if (warp < 4) {
    ptx::registers_shrink<32>();
    const int lane = threadIdx.x % 32;
    if (warp == 0) {
      if (lane == 0) produce<C>(smem, p);
    } else if (warp < 3) {
      if (lane == 0) write_dq<C>(smem, p, warp - 1);
    } else if (lane < 2 && p.ordered) {
      signal_dq<C>(smem, lane);
    }
  } else {
    ptx::registers_grow<240>();
    consume<C>(smem, p);
  }
}

}  // namespace verbatim::cuda::sm90_bwd
