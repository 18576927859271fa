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
    inside_ = 0;
    return !this->has(Visit::stop);
  }
  __device__ void leave_chain() { ++this->chains_; }

  /// Goes on to the next visit of the chain; false: there is none.
  __device__ bool next_visit() {
    const bool begun = inside_++ > 0;
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

 private:
  uint32_t inside_ = 0;  // visits of this chain that it has come to; one more behind the last
};

/// The records of all chains, one after another. It leaves a record at the end of the next.
template <int kGroups>
class Follower : public Walker<kGroups> {
  using Base = Walker<kGroups>;
  using typename Base::Visit;

 public:
  __device__ Follower(Walk<kGroups>& walk, int group) : Base(walk), group_(group) {
    flags_ = this->now().flags[group_];
  }

  /// Whether this is the first record of a chain, or behind all.
  __device__ bool begins() const { return flags_ & Visit::first; }
  __device__ bool stops() const { return flags_ & Visit::stop; }
  __device__ bool has_visit() const { return !(flags_ & (Visit::empty | Visit::stop)); }
  /// Whether some row of the warpgroup sees some key of it: P of any other visit is 0, and left
  /// out.
  __device__ bool sees() const { return !(flags_ & Visit::hidden); }
  /// Whether there was a chain before that which begins here.
  __device__ bool has_chain() const { return this->records_ > 0; }
  /// Whether the record before is a visit that it saw, of this chain or of another.
  __device__ bool has_before() const { return !(before_ & Visit::hidden); }
  __device__ const Visit& before() const { return use(this->walk_.visit, this->records_ - 1); }

  /// Whether some row of the warpgroup does not see some key of this visit, or of that before.
  __device__ bool cuts() const { return flags_ & kCut; }
  __device__ bool cut_before() const { return before_ & kCut; }
  /// Whether all is as in most visits: another of the same chain, as whole as that before.
  __device__ bool is_plain() const { return !(flags_ | (before_ & (kCut | Visit::tail))); }

  __device__ void advance() {
    before_ = flags_;
    this->visits_ += has_visit();
    if (this->records_ > 0) leave(this->walk_.visit_empty, this->records_ - 1);
    ++this->records_;
    this->await_record();
    flags_ = this->now().flags[group_];
    this->chains_ += begins();
  }

 private:
  static constexpr uint32_t kCut = Visit::masked | Visit::hidden;

  const int group_;
  uint32_t flags_, before_ = Visit::hidden;  // of this record and of that before
};

}  // namespace verbatim::cuda::sm90::tl
