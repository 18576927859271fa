// Host side of the sm80 forward: one instantiation per .cu file (sm80/CMakeLists.txt lists them).
#pragma once

#include "backend/cuda/launch.cuh"
#include "backend/cuda/sm80/fwd/fwd.h"
#include "backend/cuda/sm80/fwd/kernel.cuh"

namespace verbatim::cuda::sm80 {

template <class Config>
void launch_forward(const ForwardParams& params, const LaunchContext& context) {
  constexpr const char* kName = "sm80.forward";
  constexpr int64_t kShared = sizeof(typename Config::SharedStorage);
  const int64_t workers = workers_of(kName, forward<Config>, Config::kThreads, kShared, context,
                                     params.plan.unit_count);
  launch_workers(kName, forward<Config>, workers, Config::kThreads, kShared, context, params);
}

}  // namespace verbatim::cuda::sm80
