// Host side of the sm80 backward: one instantiation per .cu file (sm80/CMakeLists.txt lists them).
#pragma once

#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm80/bwd/bwd.h"
#include "backend/cuda/sm80/bwd/kernel.cuh"
#include "backend/cuda/sm80/bwd/prepare.cuh"

namespace verbatim::cuda::sm80 {

template <class Config>
void launch_backward(const BackwardParams& params, const LaunchContext& context) {
  using Element = typename Config::Element;
  const Sizes& s = params.sizes;
  constexpr const char* kName = "sm80.backward";
  constexpr int64_t kShared = sizeof(typename Config::SharedStorage);
  const int64_t workers = workers_of(kName, backward<Config>, Config::kThreads, kShared, context,
                                     params.plan.unit_count);
  const int64_t row_heads = int64_t{s.batch} * s.q_heads;
  launch_threads("sm80.backward.delta", row_delta<Element>, 256, row_heads * s.q_len * 32,
                 context.stream, params);
  if (context.empty_rows) {
    launch_threads("sm80.backward.zero", zero_rows<Element>, 128,
                   row_heads * params.hand_off.max_q_tiles * 128, context.stream, params);
  }
  launch_workers(kName, backward<Config>, workers, Config::kThreads, kShared, context, params,
                 context.shared_tiles);
}

}  // namespace verbatim::cuda::sm80
