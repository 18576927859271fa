// Rings of shared-memory slots: who fills a slot waits until it is empty, who reads it until it is
// full. A barrier of its own guards each state of each slot.
#pragma once

#include <cstdint>

#include "backend/cuda/sm90/ptx.cuh"

namespace verbatim::cuda::sm90 {

/// A barrier, or each of a ring, completes a phase after `arrivals`.
__device__ __forceinline__ void init(uint64_t& barrier, uint32_t arrivals) {
  ptx::mbarrier_init(&barrier, arrivals);
}
template <int kSlots>
__device__ __forceinline__ void init(uint64_t (&barriers)[kSlots], uint32_t arrivals) {
  for (uint64_t& barrier : barriers) init(barrier, arrivals);
}

/// A place in a ring of any number of slots.
template <int kSlots>
class Ring {
 public:
  __device__ __forceinline__ int slot() const { return slot_; }
  __device__ __forceinline__ int before() const {  // the last slot
    return (slot_ == 0 ? kSlots : slot_) - 1;
  }
  __device__ __forceinline__ uint32_t phase() const { return phase_; }
  __device__ __forceinline__ void advance() {
    const bool around = ++slot_ == kSlots;
    slot_ = around ? 0 : slot_;
    phase_ ^= around;
  }

 private:
  int slot_ = 0;
  uint32_t phase_ = 0;
};

/// Waits until the slot at a place is full.
template <int kSlots>
__device__ __forceinline__ void wait_full(uint64_t (&full)[kSlots], const Ring<kSlots>& at) {
  ptx::mbarrier_wait(&full[at.slot()], at.phase());
}
/// Waits until the slot at a place is empty: the first round finds every slot so.
template <int kSlots>
__device__ __forceinline__ void wait_empty(uint64_t (&empty)[kSlots], const Ring<kSlots>& at) {
  ptx::mbarrier_wait(&empty[at.slot()], at.phase() ^ 1);
}

// The same for the n-th use of a ring, from 0 on: of threads whose counters place them in several.

template <int kSlots>
__device__ __forceinline__ void wait_full(uint64_t (&full)[kSlots], uint32_t n) {
  static_assert((kSlots & (kSlots - 1)) == 0);
  ptx::mbarrier_wait(&full[n % kSlots], n / kSlots % 2);
}
template <int kSlots>
__device__ __forceinline__ void wait_empty(uint64_t (&empty)[kSlots], uint32_t n) {
  static_assert((kSlots & (kSlots - 1)) == 0);
  ptx::mbarrier_wait(&empty[n % kSlots], n / kSlots % 2 ^ 1);
}
/// Of a single slot.
__device__ __forceinline__ void wait_full(uint64_t& full, uint32_t n) {
  ptx::mbarrier_wait(&full, n % 2);
}
__device__ __forceinline__ void wait_empty(uint64_t& empty, uint32_t n) {
  ptx::mbarrier_wait(&empty, n % 2 ^ 1);
}

}  // namespace verbatim::cuda::sm90
