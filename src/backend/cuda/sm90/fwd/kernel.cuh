// Forward attention for Hopper: O = softmax(S) V and LSE, visit by visit as the plan says.
// Online softmax after Milakov and Gimelshein (2018); the overlap of softmax and GEMMs, inside a
// warpgroup and between warpgroups, after FlashAttention-3 (Shah et al., 2024, section 3).
//
//   warp                      does                                    registers
//   0                         decoder: takes tickets, reads the plan  56 or 32
//   1                         loader: TMA of Q and K tiles            56 or 32
//   2                         loader: TMA of V tiles                  56 or 32
//   3                         leaves at once
//   4 .. 3 + 4 * consumers    64 query rows each warpgroup            224 or 160
//
//   decoder --visit_full--> loaders --q_full, k_full, v_full (TMA bytes)--> consumers
//      ^                       ^------q_empty, k_empty, v_empty----------------|
//      |---------------------------------visit_empty----------------(and from the loaders)
//
// All rings are in order, so a consumer that sees k_full of a visit may read its record. One
// token walks round the consumers; whoever holds it issues Q K^T of this visit and P V of the
// previous one, passes it on, and does its softmax while the others' GEMMs run.
#pragma once

#include "backend/cuda/sm90/fwd/consumer.cuh"
#include "backend/cuda/sm90/fwd/decode.cuh"
#include "backend/cuda/sm90/fwd/load.cuh"

namespace verbatim::cuda::sm90::fwd {

/// One block per multiprocessor.
template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) forward(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) char shared[];
  auto& smem = *reinterpret_cast<typename C::SharedStorage*>(shared);
  if (threadIdx.x == 0) {
    init(smem.visit_full, 1);
    init(smem.visit_empty, C::kConsumerWarps + 2);  // and the loaders
    init(smem.q_full, 1);
    init(smem.q_empty, C::kConsumerWarps);
    init(smem.k_full, 1);
    init(smem.k_empty, C::kConsumerWarps);
    init(smem.v_full, 1);
    init(smem.v_empty, C::kConsumerWarps);
    ptx::fence_barrier_init();
  }
  __syncthreads();

  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0);
  if (warpgroup == 0) {
    ptx::registers_shrink<C::kServiceRegisters>();
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    const bool leader = threadIdx.x % 32 == 0;
    if (warp == 0) decode<C>(smem, p.plan, p.ticket);
    if (warp == 1 && leader) load_keys<C>(smem, p);
    if (warp == 2 && leader) load_values<C>(smem, p);
  } else {
    ptx::registers_grow<C::kConsumerRegisters>();
    Consumer<C>(smem, p, warpgroup - 1).run();
  }
}

}  // namespace verbatim::cuda::sm90::fwd
