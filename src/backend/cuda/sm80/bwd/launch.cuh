// Host side of the sm80 backward: one instantiation per .cu file (sm80/CMakeLists.txt lists them).
#pragma once

#include "backend/cuda/launch.cuh"
#include "backend/cuda/prepare_backward.cuh"
#include "backend/cuda/sm80/bwd/bwd.h"
#include "backend/cuda/sm80/bwd/kernel.cuh"

namespace verbatim::cuda::sm80 {

template <class Config>
void launch_backward(const BackwardParams& params, const LaunchContext& context) {
  using Element = typename Config::Element;
  constexpr const char* kName = "sm80.backward";
  constexpr int64_t kShared = sizeof(typename Config::SharedStorage);
  const int64_t workers = workers_of(kName, backward<Config>, Config::kThreads, kShared, context,
                                     params.plan.unit_count);
  check(prepare_backward<Element>(params, context.empty_rows, context.stream),
        "sm80.backward.prepare");
  launch_workers(kName, backward<Config>, workers, Config::kThreads, kShared, context, params,
                 context.tile_sums);
}

}  // namespace verbatim::cuda::sm80
