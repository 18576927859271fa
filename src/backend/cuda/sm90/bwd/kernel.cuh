// The deterministic backward on Hopper: one resident CTA per SM walks the chains of a plan.
//
//   warp            role          waits for                       tells
//   0               loader        visit_full, {rows,k,v}_empty,   {rows,k,v}_full
//                                 raw
//   1, 2            dQ writers    turn of the row,                turn of the row, sum_full,
//                                 {visit,dq,sum}_full             {visit,dq}_empty
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
#include "backend/cuda/sm90/bwd/consumer.cuh"
#include "backend/cuda/sm90/bwd/decode.cuh"
#include "backend/cuda/sm90/bwd/dq.cuh"
#include "backend/cuda/sm90/bwd/load.cuh"

namespace verbatim::cuda::sm90::bwd {

constexpr uint32_t kEndingThreads = kConsumerThreads + 64;  // and the writers' warps

/// The end of the consumers, who alone write results: those of the last CTA destroy them when the
/// launch was given up. A writer may give up after the consumers are done.
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
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);

  if (threadIdx.x == 0) {
    Recorder::start_clock(p.record);
    constexpr uint32_t kConsumerWarps = kConsumerThreads / 32;
    init(smem.k_full, 1);
    init(smem.v_full, 1);
    init(smem.k_empty, kConsumerWarps);
    init(smem.v_empty, kConsumerWarps);
    init(smem.raw, 1);
    init(smem.chain_full, 1);
    init(smem.chain_empty, kConsumerWarps);
    init(smem.visit_full, 1);
    init(smem.visit_empty, 1);  // a writer, after everybody else
    init(smem.rows_full, 1);
    init(smem.rows_empty, kConsumerWarps);
    init(smem.stats_empty, kConsumerWarps);
    init(smem.dq_full, kConsumerWarps);
    init(smem.dq_empty, 1);
    init(smem.sum_full, 1);
    init(smem.ds_empty, kConsumerWarps);
    ptx::fence_barrier_init();
  }
  __syncthreads();

  if (warp < kServiceThreads / 32) {
    ptx::registers_shrink<kServiceRegisters>();
    const bool leader = threadIdx.x % 32 == 0;
    if (warp == 0) load<C, Recorder>(smem, p);
    if (warp == 1 || warp == 2) {
      if (leader && warp <= C::kProductStages) write_dq<C, Recorder>(smem, p, warp - 1);
      __syncwarp();
      ptx::named_barrier_arrive(static_cast<uint32_t>(NamedBarrier::ended), kEndingThreads);
    }
    if (warp == 3) decode<C, Recorder>(smem, p);
  } else {
    ptx::registers_grow<kConsumerRegisters>();
    Consumer<C, Recorder>(smem, p).run();
    end(p);
    if (threadIdx.x == kServiceThreads) Recorder::stop_clock(p.record);
  }
}

}  // namespace verbatim::cuda::sm90::bwd
