// Host side of the sm80 forward: one instantiation per .cu file (sm80/CMakeLists.txt lists them).
#pragma once

#include "backend/cuda/device/launch.cuh"
#include "backend/cuda/sm80/fwd/fwd.h"
#include "backend/cuda/sm80/fwd/kernel.cuh"

namespace verbatim::cuda::sm80 {

template <class Config>
void launch_forward(const ForwardParams& params, const LaunchContext& context) {
  launch_workers("sm80.forward", forward<Config>, Config::kThreads,
                 sizeof(typename Config::SharedStorage), context, params.plan.unit_count, params);
}

}  // namespace verbatim::cuda::sm80
