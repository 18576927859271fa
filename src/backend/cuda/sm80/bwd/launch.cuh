// Host side of the sm80 backward: one instantiation per .cu file (sm80/CMakeLists.txt lists them).
#pragma once

#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/sm80/bwd/bwd.h"
#include "backend/cuda/sm80/bwd/kernel.cuh"
#include "backend/cuda/sm80/bwd/prepare.cuh"

namespace verbatim::cuda::sm80 {

template <class Config>
void launch_backward(const BackwardParams& params, const LaunchContext& context) {
  using Element = typename Config::Element;
  const Sizes& s = params.sizes;
  const int64_t row_heads = int64_t{s.batch} * s.q_heads;
  launch_threads("sm80.backward.delta", row_delta<Element>, 256, row_heads * s.q_len * 32,
                 context.stream, params);
  if (context.empty_rows) {
    launch_threads("sm80.backward.zero", zero_rows<Element>, 128,
                   row_heads * params.hand_off.max_q_tiles * 128, context.stream, params);
  }
  launch_workers("sm80.backward", backward<Config>, Config::kThreads,
                 sizeof(typename Config::SharedStorage), context, params.plan.unit_count, params,
                 context.shared_tiles);
}

}  // namespace verbatim::cuda::sm80
