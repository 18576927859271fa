// Forward attention for Hopper under masks that blocks cut, with the bits of kernel.cuh.
//
//   warp     does                                    registers
//   0        decoder: takes tickets, reads the plan  56
//   1        loader: TMA of Q, and of halves of K and V tiles
//   2, 3     leave at once
//   4 .. 7   64 query rows                           200
//
// two_heads, two query heads of a group that see the same blocks, one CTA a multiprocessor:
//   4 .. 11  64 query rows of each head              224
#pragma once

#include "backend/cuda/sm90/fwd/blocks/consumer.cuh"
#include "backend/cuda/sm90/fwd/blocks/decode.cuh"
#include "backend/cuda/sm90/fwd/blocks/load.cuh"

namespace verbatim::cuda::sm90::fwd {

/// kCtas blocks per multiprocessor.
template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kCtas)
    forward_blocks(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) char shared[];
  auto& smem = *reinterpret_cast<typename C::SharedStorage*>(shared);
  if (threadIdx.x == 0) {
    init(smem.visit_full, 1);
    init(smem.visit_empty, C::kConsumerWarps + 1);  // and the loader
    init(smem.q_full, C::kHeads);
    init(smem.q_empty, C::kConsumerWarps);
    init(smem.slot_full, 1);
    init(smem.slot_empty, C::kConsumerWarps);
    ptx::fence_barrier_init();
  }
  __syncthreads();

  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  if (warp < 4) {
    ptx::registers_shrink<C::kServiceRegisters>();
    if (warp == 0) decode_blocks<C>(smem, p.plan, p.ticket);
    if (warp == 1 && threadIdx.x % 32 == 0) load_blocks<C>(smem, p);
  } else {
    ptx::registers_grow<C::kConsumerRegisters>();
    BlockConsumer<C>(smem, p, warp / 4 - 1).run();
  }
}

}  // namespace verbatim::cuda::sm90::fwd
