// The deterministic backward on Hopper: one resident CTA per SM walks the chains of a plan.
//
//   warp            role          waits for                       tells
//   0               loader        visit_full, {rows,k,v}_empty,   {rows,k,v}_full
//                                 raw
//   1               dQ writer     turn of the row,                {signal,sum}_full,
//                                 {visit,dq}_full                 {visit,dq}_empty
//   2               signaller     signal_full                     turn of the row, signal_empty
//   3               decoder       {chain,visit}_empty             {chain,visit}_full
//   4-7, 8-11       consumers     {chain,rows,k,v,sum}_full,      {chain,rows,k,v}_empty, dq_full
//                                 dq_empty
//
//   plan -> decoder -> loader -> {Q, dO, K, V} -> consumers -> dQ (shared) -> writer -> dq_sum
//   (L2)
//                                                   |   |                         ^   ^       |
//                                        dK, dV <---+   +----> dQ <---- sum --------+   +- turn +
//
// In a visit dP runs behind the exponentials of P, and dK behind the store of dQ. Shared memory is
// the limit (docs/kernels/backward-sm90.md), so dV and dK take P^T and dS^T from registers.
#pragma once

#include "backend/cuda/device/hand_off.cuh"
#include "backend/cuda/device/recorder.cuh"
#include "backend/cuda/sm90/bwd/config.h"
#include "backend/cuda/sm90/bwd/decode.cuh"
#include "backend/cuda/sm90/bwd/dq.cuh"
#include "backend/cuda/sm90/bwd/extras.cuh"
#include "backend/cuda/sm90/bwd/gemm.cuh"
#include "backend/cuda/sm90/bwd/key_sums.cuh"
#include "backend/cuda/sm90/bwd/load.cuh"
#include "backend/cuda/sm90/bwd/params.h"
#include "backend/cuda/sm90/fragment.cuh"
#include "backend/cuda/sm90/ptx.cuh"
#include "backend/cuda/sm90/tanh.cuh"

namespace verbatim::cuda::sm90_bwd {

/// Bits of those of this thread's query columns, 8 * (m / 2) + 2 * (lane % 4) + m % 2 for bit m,
/// that lie before `query` (at least 0) of the tile.
__device__ __forceinline__ uint32_t columns_before(int query) {
  const int m = query / 8 * 2 + min(max(query % 8 - 2 * static_cast<int>(threadIdx.x % 4), 0), 2);
  return m >= 32 ? ~0u : (1u << m) - 1;
}

/// Bit i of the result: element i of this thread's S^T fragment is visible. Element i is at KV row
/// k_row + 8 * (i / 2 % 2) and query column 8 * (i / 4) + 2 * (lane % 4) + i % 2 of the tile.
template <class C, int kWords>
__device__ __forceinline__ void visible_bits(uint32_t (&bits)[kWords], const OrderView* orders,
                                             const Visit& visit, const Chain90& chain, int k_row) {
  CUTE_UNROLL
  for (int w = 0; w < kWords; ++w) bits[w] = 0;
  const int bands = visit.head.bands;
#pragma unroll 1
  for (int b = 0; b < bands; ++b) {
    Band band = visit.band;
    if (b > 0) {
      const OrderView& order = orders[chain.place.order];
      band = make_band<C>(order.slices[order.slice_ids[visit.slice_begin + b]], visit.q_begin,
                          chain.kv_begin, chain.kv_rows);
    }
    CUTE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int k = k_row + 8 * half;
      const int first = max(max(band.q_begin, k - band.hi), 0);  // queries [first, last) see k
      const int last =
          k >= band.k_begin && k < band.k_end ? max(min(band.q_end, k - band.lo + 1), 0) : 0;
      const uint32_t seen = columns_before(last) & ~columns_before(first);
      CUTE_UNROLL
      for (int w = 0; w < kWords; ++w) {
        uint32_t pairs = seen >> (16 * w) & 0xffff;  // of bits, spread to every second pair
        pairs = (pairs | pairs << 8) & 0x00ff00ff;
        pairs = (pairs | pairs << 4) & 0x0f0f0f0f;
        pairs = (pairs | pairs << 2) & 0x33333333;
        bits[w] |= pairs << (2 * half);
      }
    }
  }
}

/// Makes the elements without their bit -inf. Seven bits at a time: as many predicates as one
/// instruction sets from a register.
template <int kWords, class Scores>
__device__ __forceinline__ void hide(Scores& scores, const uint32_t (&bits)[kWords]) {
  CUTE_UNROLL
  for (int first = 0; first < 32; first += 7) {
    CUTE_UNROLL
    for (int w = 0; w < kWords; ++w) {
      const uint32_t part = bits[w] >> first;
      CUTE_UNROLL
      for (int b = 0; b < min(7, 32 - first); ++b) {
        if (!(part & (1u << b))) scores(32 * w + first + b) = -INFINITY;
      }
    }
  }
}

template <class C, class Recorder>
__device__ void consume(typename C::SharedStorage& smem, const Params& p) {
  using Element = typename C::Element;
  constexpr int kScores = C::kTileQ / 2;  // elements of S^T a thread holds
  // Of the consumers; through a shuffle, so that the compiler keeps it and does not ask again.
  // Unsigned, so that what follows from it is a shift away and needs no register.
  const uint32_t tid = __shfl_sync(0xffffffff, threadIdx.x - kServiceThreads, threadIdx.x % 32);
  const int half = __shfl_sync(0xffffffff, tid / 128, 0);  // warpgroup; uniform for descriptors
  const uint32_t lane = tid % 32;
  const float scale_log2 = p.common.scalars.scale_log2;
  const Softcap& softcap = p.softcap;
  const Dropout& dropout = p.common.scalars.dropout;
  const int k_row = static_cast<int>(tid / 32 * 16 + lane / 4);

  Tensor sK = make_tensor(make_smem_ptr(smem.k), typename C::LayoutKv{});          // (TKV,HD)
  Tensor sV = make_tensor(make_smem_ptr(smem.v), typename C::LayoutKv{});          // (TKV,HD)
  Tensor sKt = make_tensor(make_smem_ptr(smem.k), typename C::LayoutKt{});         // (HD,TKV)
  Tensor sQ = make_tensor(make_smem_ptr(smem.q), typename C::LayoutRows{});        // (TQ,HD,stages)
  Tensor sQt = make_tensor(make_smem_ptr(smem.q), typename C::LayoutRowsT{});      // (HD,TQ,stages)
  Tensor sDo = make_tensor(make_smem_ptr(smem.dout), typename C::LayoutRows{});    // (TQ,HD,stages)
  Tensor sDot = make_tensor(make_smem_ptr(smem.dout), typename C::LayoutRowsT{});  // (HD,TQ,stages)
  Tensor sDst = make_tensor(make_smem_ptr(smem.ds), typename C::LayoutDst{});  // (TQ,TKV,stages)

  typename C::MmaSdP mma_sdp;
  typename C::MmaStats mma_stats;
  typename C::MmaDkv mma_dkv;
  typename C::MmaDq mma_dq;
  auto thr_sdp = mma_sdp.get_thread_slice(half * 128);
  auto thr_dkv = mma_dkv.get_thread_slice(half * 128);
  auto thr_dq = mma_dq.get_thread_slice(half * 128);
  Tensor tSrK = thr_sdp.partition_fragment_A(sK);  // descriptors (MMA,1,HD/16)
  Tensor tPrV = thr_sdp.partition_fragment_A(sV);  // descriptors (MMA,1,HD/16)
  Tensor sStats = make_tensor(make_smem_ptr(reinterpret_cast<Element*>(smem.stats)),
                              typename C::LayoutStats{});  // (TQ,16)
  Tensor tSrStats = mma_stats.get_thread_slice(half * 128).partition_fragment_B(sStats);
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

  // The constant operands of the k steps that subtract LSE and delta.
  const auto weights = [&](bool of_scores) {
    Tensor rW = make_tensor<Element>(Layout<Shape<Shape<_2, _2, _2>, _1, _1>>{});  // (MMA,1,1)
    Tensor words = recast<uint32_t>(rW);
    words(0) = words(1) =
        StatCode<Element>::weights(lane, of_scores, p.common.scalars.scale, p.unit);
    words(2) = words(3) = 0;
    return rW;
  };
  const Tensor lse_weights = weights(true), delta_weights = weights(false);

  Recorder recorder(p.record, 0, tid == 0);
  const auto release = [&](uint64_t* bar) {  // one arrival a warp
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(bar);
  };
  // Two counters place this thread in every ring: visits and chains so far.
  constexpr auto stage = [](uint32_t n) { return n % C::kStages; };
  constexpr auto phase = [](uint32_t n) { return n / C::kStages % 2; };
  // S or dP. Softcap and dropout come before LSE and delta are subtracted.
  const auto issue = [&](const auto& weights, const auto& a, const auto& b, auto& acc) {
    if constexpr (C::kExtras) {
      gemm<true>(mma_sdp, a, b, acc);
    } else {
      gemm(mma_stats, weights, tSrStats, mma_sdp, a, b, acc);
    }
  };
  const auto issue_scores = [&](uint32_t n, bool there) {
    const int s = stage(n);
    if (there) ptx::mbarrier_wait(&smem.rows_full[s], phase(n));
    issue(lse_weights, tSrK, tSrQ(_, _, _, s), tS);
  };
  // Scales, rounds and writes dQ of visit n, whose sum is complete in its buffer.
  const auto finish_row = [&](uint32_t n) {
    const int s = stage(n);
    const Visit& visit = smem.visit[n % kVisitRing];
    ptx::mbarrier_wait(&smem.sum_full[s], phase(n));
    const auto* dq = reinterpret_cast<const float4*>(smem.dq[s][half]) + tid % 128;
    float sum[32];
    CUTE_UNROLL
    for (int i = 0; i < 8; ++i) {
      const float4 part = dq[128 * i];
      sum[4 * i] = part.x;
      sum[4 * i + 1] = part.y;
      sum[4 * i + 2] = part.z;
      sum[4 * i + 3] = part.w;
    }
    // The second warpgroup's half: the next 64 columns, or for head dim 64 the next 64 rows.
    const int row = C::kHeadDim == 64 ? 64 * half : 0, col = C::kHeadDim == 64 ? 0 : 64 * half;
    Element* base =
        p.common.dq.template at<Element>(visit.batch, visit.q_at + row, visit.q_head) + col;
    store_rows<Element, 8>([&](int i) { return sum[i]; }, p.common.scalars.scale, base,
                           p.common.dq.row, tid % 128 / 32 * 16 + lane / 4, visit.head.rows - row);
  };
  bool pending = false;  // dQ of the visit before is to be finished
  // The visits of a chain, of which n is the first; returns the number of the visit behind them. S
  // of the next visit is computed behind dK. Behind the last one it is computed from whatever is
  // there and not used: ptxas serialises all wgmma if one of them is conditional.
  const auto do_visits = [&](const Chain90& chain, uint32_t n) {
    issue_scores(n, true);
    DropoutPlace place;
    if (C::kExtras && dropout.enabled()) {
      place = DropoutPlace::of(p.common, chain, smem.visit[n % kVisitRing]);
    }
    warpgroup_wait<0>();
    warpgroup_fence_operand(tS);
    for (;; ++n) {
      Recorder::disturb();
      const int64_t begin = recorder.now();
      const Visit& visit = smem.visit[n % kVisitRing];
      const int s = stage(n);
      const int32_t row = visit.row;
      const bool last = visit.head.last, masked = visit.head.bands > 0;
      const bool completes = visit.head.rows > 0;
      uint32_t kept[C::kTileQ / 64];  // before dP is in flight: a draw needs registers
      if constexpr (C::kExtras) {
        CUTE_UNROLL
        for (uint32_t& word : kept) word = ~0u;
        if (dropout.enabled()) {
          kept_bits(kept, dropout, place.sequence, p.common.plan.first_q_head + visit.q_head,
                    visit.q_begin - place.q, place.k + tid / 32 * 16);
        }
      }
      issue(delta_weights, tPrV, tPrDo(_, _, _, s), tP);
      if (C::kExtras && softcap.cap != 0) {
        CUTE_UNROLL
        for (int i = 0; i < kScores; ++i) {
          tS(i) = softcap.cap * tanh_from_log2(tS(i) * softcap.argument);
        }
      } else {
        CUTE_UNROLL
        for (int i = 0; i < kScores; ++i) tS(i) *= scale_log2;
      }
      if (masked) {
        uint32_t bits[C::kTileQ / 64];
        visible_bits<C>(bits, p.common.plan.orders, visit, chain, k_row);
        hide(tS, bits);
      }
      Tensor rP = make_tensor<Element>(operand);   // (MMA,1,TQ/16)
      Tensor rDs = make_tensor<Element>(operand);  // (MMA,1,TQ/16)
      Tensor p_words = recast<uint32_t>(rP);
      Tensor ds_words = recast<uint32_t>(rDs);
      if constexpr (C::kExtras) {
        warpgroup_wait<0>();  // dP(n)
        warpgroup_fence_operand(tP);
        weigh<C>(tS, tP, smem.stats, kept, softcap.inverse, dropout.scale, p_words, ds_words);
        release(&smem.stats_empty);
      } else {
        // No branch from here to dS, so that the compiler mixes exponentials and arithmetic.
        CUTE_UNROLL
        for (int i = 0; i < kScores; ++i) tS(i) = ptx::exp2_approx(tS(i));
        warpgroup_wait<0>();  // dP(n)
        warpgroup_fence_operand(tP);
        release(&smem.stats_empty);
        CUTE_UNROLL
        for (int i = 0; i < kScores / 2; ++i) {
          ds_words(i) = pack<Element>(tS(2 * i) * tP(2 * i), tS(2 * i + 1) * tP(2 * i + 1));
        }
        CUTE_UNROLL
        for (int i = 0; i < kScores / 2; ++i) p_words(i) = pack<Element>(tS(2 * i), tS(2 * i + 1));
      }
      // One of two buffers: who passed the last barrier has finished with the dS before it.
      CUTE_UNROLL
      for (int i = 0; i < kScores / 8; ++i) {
        const uint32_t to = ds_row + s * C::kDsBytes + i / 4 * (C::kTileKv * 128);
        ptx::store_matrices(to ^ (i % 4 * 32), ds_words(4 * i), ds_words(4 * i + 1),
                            ds_words(4 * i + 2), ds_words(4 * i + 3));
      }
      gemm<false>(mma_dkv, rP, tVrDo(_, _, _, s), tV);
      if (last) release(&smem.v_empty);
      ptx::fence_async_shared();
      ptx::named_barrier(static_cast<uint32_t>(NamedBarrier::scores_stored), kConsumerThreads);

      gemm<true>(mma_dq, tQrDs(_, _, _, s), tQrK, tQ);
      gemm<false>(mma_dkv, rDs, tKrQ(_, _, _, s), tK);
      ptx::mbarrier_wait(&smem.dq_empty[s], phase(n) ^ 1);
      warpgroup_wait<1>();  // dQ(n)
      warpgroup_fence_operand(tQ);
      if (last) release(&smem.k_empty);
      float4* dq = reinterpret_cast<float4*>(smem.dq[s][half]) + tid % 128;
      CUTE_UNROLL
      for (int i = 0; i < 8; ++i) {
        dq[128 * i] = make_float4(tQ(4 * i), tQ(4 * i + 1), tQ(4 * i + 2), tQ(4 * i + 3));
      }
      Recorder::disturb();
      release(&smem.dq_full[s]);  // the proxy fence is the writer's: it costs less there
      issue_scores(n + 1, !last);
      warpgroup_wait<0>();  // dK(n), S(n + 1)
      warpgroup_fence_operand(tK);
      warpgroup_fence_operand(tV);
      warpgroup_fence_operand(tS);
      recorder.note(RecordKind::compute, begin, row, chain.key);
      Recorder::disturb();
      release(&smem.rows_empty[s]);
      if (pending) finish_row(n - 1);  // a visit later, so that its sum is there
      pending = completes;
      if (last) return n + 1;
    }
  };

  uint32_t n = 0;  // visits so far
  // Chains so far, from bit 1 on; in bit 0 whether an odd number of them had visits.
  for (uint32_t chains = 0;; chains += 2) {
    const uint32_t c = chains / 2;
    ptx::mbarrier_wait(&smem.chain_full[c % kChainRing], c / kChainRing % 2);
    const int64_t started = recorder.now();
    const Chain90& chain = smem.chain[c % kChainRing];
    const Chain90::State state = chain.state;
    if (state == Chain90::end) {
      if (pending) finish_row(n - 1);
      break;
    }
    begin_key_tile<Element>(p, chain, half, k_row, tK, tV);
    if (state == Chain90::visited) {
      ptx::mbarrier_wait(&smem.k_full, chains % 2);
      ptx::mbarrier_wait(&smem.v_full, chains % 2);
      chains ^= 1;
      recorder.note(RecordKind::start, started, -1, chain.key);
      n = do_visits(chain, n);
    }

    const int64_t ended = recorder.now();
    if (chain.addends > 1) share_key_tile<Element>(p, chain, half, k_row, tK, tV);
    if (chain.addend + 1 == chain.addends) {
      const auto store = [&](const TensorRef& tensor, const auto& acc, float scale) {
        Element* base = tensor.template at<Element>(chain.batch, chain.kv_at, chain.kv_head);
        store_rows<Element, C::kHeadDim / 8>(acc, scale, base, tensor.row, k_row, chain.kv_rows);
      };
      store(p.common.dk, tK, p.common.scalars.scale);
      store(p.common.dv, tV, C::kExtras ? dropout.scale : 1.0f);
    }
    recorder.note(RecordKind::finish, ended, -1, chain.key);
    release(&smem.chain_empty[c % kChainRing]);
  }
}

constexpr uint32_t kEndingThreads = kConsumerThreads + 32;  // and the writer's warp

/// The end of the consumers, who alone write results: those of the last CTA destroy them when the
/// launch was given up. The writer may give up after the consumers are done.
__device__ __forceinline__ void end(const Params& p) {
  const int32_t thread = static_cast<int32_t>(threadIdx.x) - kServiceThreads;
  ptx::named_barrier(static_cast<uint32_t>(NamedBarrier::ended), kEndingThreads);
  const bool given_up = thread == 0 && ends_given_up(p.common.hand_off);
  if (ptx::named_barrier_or(static_cast<uint32_t>(NamedBarrier::scores_stored), kConsumerThreads,
                            given_up)) {
    destroy_results(p.common, thread, kConsumerThreads);
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
    ptx::mbarrier_init(&smem.raw, 1);
    init(smem.chain_full, 1);
    init(smem.chain_empty, kConsumerWarps);
    init(smem.visit_full, 1);
    init(smem.visit_empty, 1);  // the writer, after everybody else
    init(smem.rows_full, 1);
    init(smem.rows_empty, kConsumerWarps);
    ptx::mbarrier_init(&smem.stats_empty, kConsumerWarps);
    init(smem.dq_full, kConsumerWarps);
    init(smem.dq_empty, 1);
    init(smem.sum_full, 1);
    ptx::mbarrier_init(&smem.signal_full, 1);
    ptx::mbarrier_init(&smem.signal_empty, 1);
    ptx::fence_barrier_init();
  }
  __syncthreads();

  if (warp < kServiceThreads / 32) {
    ptx::registers_shrink<kServiceRegisters>();
    const bool leader = threadIdx.x % 32 == 0;
    if (warp == 0) load<C, Recorder>(smem, p);
    if (warp == 1) {
      if (leader) write_dq<C, Recorder>(smem, p);
      __syncwarp();
      ptx::named_barrier_arrive(static_cast<uint32_t>(NamedBarrier::ended), kEndingThreads);
    }
    if (warp == 2 && leader && p.ordered) signal_turns<C, Recorder>(smem);
    if (warp == 3) decode<C, Recorder>(smem, p);
  } else {
    ptx::registers_grow<kConsumerRegisters>();
    consume<C, Recorder>(smem, p);
    end(p);
    if (threadIdx.x == kServiceThreads) Recorder::stop_clock(p.record);
  }
}

}  // namespace verbatim::cuda::sm90_bwd
