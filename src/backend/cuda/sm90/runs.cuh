// Runs of a chain, read by a warp at once.
#pragma once

#include <cstdint>

namespace verbatim::cuda::sm90 {

/// The visits of up to 32 runs, one a lane: `count` of this lane's, 0 behind the last.
class RunWindow {
 public:
  __device__ __forceinline__ explicit RunWindow(int32_t count) : before_(count) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int32_t below = __shfl_up_sync(~0u, before_, step);
      if (lane >= step) before_ += below;
    }
    total_ = __shfl_sync(~0u, before_, 31);
    before_ = count > 0 ? before_ - count : total_;
  }
  __device__ __forceinline__ int32_t total() const { return total_; }
  /// The lane whose run has visit `i` of these, less than total().
  __device__ __forceinline__ int run_of(int32_t i) const {
    int found = 0;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      if (__shfl_sync(~0u, before_, found + step) <= i) found += step;
    }
    return found;
  }
  /// Visits of the runs before lane `j`'s.
  __device__ __forceinline__ int32_t before(int j) const { return __shfl_sync(~0u, before_, j); }

 private:
  int32_t before_, total_;
};

}  // namespace verbatim::cuda::sm90
