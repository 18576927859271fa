// How the warps of a CTA follow its plan in a kernel translated from TL: one decodes visits, as in
// the forward (fwd/decode.cuh), two lanes copy tiles for them, warpgroups compute. All pass through
// rings in shared memory, whose uses are counted.
#pragma once

#include "backend/cuda/sm90/fwd/decode.cuh"
#include "backend/cuda/sm90/pipeline.cuh"

namespace verbatim::cuda::sm90::tl {

using fwd::QueryTile;

/// What the n-th use of a ring finds in it.
template <class T, int kSlots>
__device__ __forceinline__ T& use(T (&ring)[kSlots], uint32_t n) {
  return ring[n % kSlots];
}

/// The barriers of a ring that is filled by copies.
template <int kSlots>
struct Slots {
  uint64_t full[kSlots], empty[kSlots];
};
/// `readers` warps leave each slot.
template <int kSlots>
__device__ __forceinline__ void init(Slots<kSlots>& slots, uint32_t readers) {
  sm90::init(slots.full, 1);
  sm90::init(slots.empty, readers);
}
/// A warp is done with the n-th use of a ring.
template <int kSlots>
__device__ __forceinline__ void leave(uint64_t (&empty)[kSlots], uint32_t n) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(&use(empty, n));
}

/// Decoded visits, for `kGroups_` warpgroups.
template <int kGroups_>
struct Walk {
  static constexpr int kGroups = kGroups_;
  fwd::Visit<kGroups> visit[fwd::kVisitRing];
  QueryTile queries;  // the decoder's
  uint64_t visit_full[fwd::kVisitRing], visit_empty[fwd::kVisitRing];
};
/// `leaders`: the lanes that copy, and the warp that turns tiles of e4m3.
template <int kGroups>
__device__ __forceinline__ void init(Walk<kGroups>& walk, uint32_t leaders = 2) {
  sm90::init(walk.visit_full, 1);
  sm90::init(walk.visit_empty, 4 * kGroups + leaders);
}

/// What the decoder must know of a kernel whose shared memory, a Walk, is Shared.
template <class Shared, int kBM, int kBN>
struct Decoded {
  static constexpr int kTileQ = kBM, kTileKv = kBN, kConsumers = Shared::kGroups;
  static constexpr bool kHalves = false;
  using Visit = fwd::Visit<kConsumers>;
  using SharedStorage = Shared;
};

/// Where a copying lane or a warp that computes is. Chains and their visits are counted from the
/// kernel's first; a chain without visits has one record of its own.
template <int kGroups>
class Walker {
 public:
  using Visit = fwd::Visit<kGroups>;

  __device__ uint32_t chain() const { return chains_; }
  __device__ uint32_t number() const { return visits_; }
  __device__ const Visit& now() const { return use(walk_.visit, records_); }

 protected:
  __device__ explicit Walker(Walk<kGroups>& walk) : walk_(walk) { await_record(); }

  __device__ bool has(typename Visit::Flag flag) const { return now().flags[0] & flag; }
  __device__ void await_record() const { wait_full(walk_.visit_full, records_); }

  Walk<kGroups>& walk_;
  uint32_t chains_ = 0, visits_ = 0, records_ = 0;
  uint32_t inside_ = 0;  // visits of this chain that it has come to; one more behind the last
};

/// A lane, or a whole warp.
template <int kGroups, int kLanes = 1>
class Leader : public Walker<kGroups> {
  using Base = Walker<kGroups>;
  using typename Base::Visit;

 public:
  __device__ explicit Leader(Walk<kGroups>& walk) : Base(walk) {}

  /// Goes on to the next chain, whose queries are known then; false: there is none.
  __device__ bool next_chain() {
    this->inside_ = 0;
    return !this->has(Visit::stop);
  }
  __device__ void leave_chain() { ++this->chains_; }

  /// Goes on to the next visit of the chain; false: there is none.
  __device__ bool next_visit() {
    const bool begun = this->inside_++ > 0;
    if (begun) ++this->visits_;
    if (begun || this->has(Visit::empty)) {
      if constexpr (kLanes > 1) __syncwarp();
      if (kLanes == 1 || threadIdx.x % 32 == 0)
        ptx::mbarrier_arrive(&use(this->walk_.visit_empty, this->records_));
      ++this->records_;
      this->await_record();
      if (this->has(Visit::first)) return false;
    }
    return true;
  }
};

/// It leaves a visit while it is at the next.
template <int kGroups>
class Follower : public Walker<kGroups> {
  using Base = Walker<kGroups>;
  using typename Base::Visit;

 public:
  __device__ Follower(Walk<kGroups>& walk, int group) : Base(walk), group_(group) {}

  __device__ bool next_chain() {
    this->inside_ = 0;
    return !this->has(Visit::stop);
  }
  /// The queries of the chain, behind its last visit.
  __device__ const QueryTile& queries() const {
    return use(this->walk_.visit, this->records_ - (this->inside_ > 0)).queries;
  }
  __device__ void leave_chain() {
    if (this->inside_ == 0) ++this->records_, this->await_record();
    leave(this->walk_.visit_empty, this->records_ - 1);
    ++this->chains_;
  }

  __device__ bool next_visit() {
    if (this->inside_ == 0) {
      this->inside_ = !this->has(Visit::empty);
      return this->inside_ > 0;
    }
    ++this->inside_, ++this->visits_, ++this->records_;
    this->await_record();
    return !this->has(Visit::first);
  }
  /// Whether there was a visit before, of the same chain.
  __device__ bool has_before() const { return this->inside_ > 1; }
  __device__ const Visit& before() const { return use(this->walk_.visit, this->records_ - 1); }
  __device__ void leave_before() { leave(this->walk_.visit_empty, this->records_ - 1); }

  /// Whether some row of the warpgroup does not see some key of a visit.
  __device__ bool cuts(const Visit& visit) const {
    return visit.flags[group_] & (Visit::masked | Visit::hidden);
  }

 private:
  int group_;
};

}  // namespace verbatim::cuda::sm90::tl
