// mbarriers and the rings of shared-memory slots that they guard.
#pragma once

#include <cutlass/arch/barrier.h>
#include <cstdint>

namespace verbatim::cuda::sm90 {

using Mbarrier = cutlass::arch::ClusterTransactionBarrier;

__device__ inline void wait(const uint64_t& barrier, uint32_t phase) {
  Mbarrier::wait(&barrier, phase);
}
__device__ inline void arrive(const uint64_t& barrier) { Mbarrier::arrive(&barrier); }

/// Every barrier of `barriers` completes a phase after `count` arrivals.
template <int kSlots>
__device__ void init(uint64_t (&barriers)[kSlots], uint32_t count) {
  for (uint64_t& barrier : barriers) Mbarrier::init(&barrier, count);
}

/// A position in a ring of slots. Consumers wait for `full` with phase(), producers for `empty`
/// with free(): the first round through the ring finds every slot free.
template <int kSlots>
class Ring {
 public:
  __device__ int slot() const { return slot_; }
  __device__ int before() const { return (slot_ == 0 ? kSlots : slot_) - 1; }  // the last slot
  __device__ uint32_t phase() const { return phase_; }
  __device__ uint32_t free() const { return phase_ ^ 1; }
  __device__ void advance() {
    const bool around = ++slot_ == kSlots;
    slot_ = around ? 0 : slot_;
    phase_ ^= around;
  }

 private:
  int slot_ = 0;
  uint32_t phase_ = 0;
};

}  // namespace verbatim::cuda::sm90
