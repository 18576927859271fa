// A recorder policy that disturbs: whoever has a hook in a kernel stops there for a random while.
#pragma once

#include "backend/cuda/device/recorder.cuh"

namespace verbatim::test {

/// Every fourth time up to 4 microseconds, two visits long, drawn from clock, CTA and warp: no two
/// runs are alike. All threads of a warp that come together sleep equally long.
struct Delays : cuda::NoRecorder {
  using NoRecorder::NoRecorder;

  __device__ static void disturb() {
    uint32_t draw = static_cast<uint32_t>(clock64()) ^ (blockIdx.x << 16 | threadIdx.x / 32 << 24);
    draw = (draw ^ draw >> 15) * 0x85ebca6bu;
    draw ^= draw >> 13;
    __nanosleep(draw % 4 == 0 ? draw >> 20 : 0);
  }
};

}  // namespace verbatim::test
