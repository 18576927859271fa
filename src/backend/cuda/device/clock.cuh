// The timer that all multiprocessors of a device share.
#pragma once

#include <cstdint>

namespace verbatim::cuda {

__device__ inline int64_t nanoseconds() {
  int64_t value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
  return value;
}

}  // namespace verbatim::cuda
