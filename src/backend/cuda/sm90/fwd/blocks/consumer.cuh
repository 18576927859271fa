// The consumer warpgroup of the sm90 forward under blocks.
#pragma once

#include "backend/cuda/sm90/fwd/blocks/config.h"
#include "backend/cuda/sm90/fwd/mask.cuh"
#include "backend/cuda/sm90/fwd/output.cuh"
#include "backend/cuda/sm90/fwd/weigh.cuh"
#include "backend/cuda/sm90/gemm.cuh"
#include "backend/cuda/sm90/pipeline.cuh"

namespace verbatim::cuda::sm90::fwd {

/// What the warpgroup multiplies: its rows of Q, and K and V of all slots.
template <class C>
struct BlockOperands {
  __device__ static auto q(typename C::Element* tiles) {
    Tensor all = make_tensor(make_smem_ptr(tiles), typename C::LayoutQ{});  // (64,HD,stages)
    return typename C::MmaS{}.get_slice(0).partition_fragment_A(all);       // (MMA,1,HD/16,stages)
  }
  __device__ static auto k(typename C::Element* slots) {
    Tensor all = make_tensor(make_smem_ptr(slots), typename C::LayoutK{});  // (64,HD,slots)
    return typename C::MmaS{}.get_slice(0).partition_fragment_B(all);       // (MMA,1,HD/16,slots)
  }
  __device__ static auto v(typename C::Element* slots) {
    Tensor all = make_tensor(make_smem_ptr(slots), typename C::LayoutV{});  // (HDV,64,slots)
    return typename C::MmaO{}.get_slice(0).partition_fragment_B(all);       // (MMA,1,4,slots)
  }
  __device__ static auto o() {
    return partition_fragment_C(typename C::MmaO{}, Shape<Int<kRows>, Int<C::kHeadDimV>>{});
  }
  __device__ static auto p() {  // P, rounded, as the A operand of O
    return make_tensor<typename C::Element>(
        partition_shape_A(typename C::MmaO{}, Shape<Int<kRows>, Int<C::kTileKv>>{}));
  }
};

/// 64 rows of a query tile, visit by visit as Consumer, without others to take turns with. A visit
/// is a tile of keys, or one or two halves of tiles of which no row sees the other half. Its bits
/// are Consumer's: what is left out would add zeros, and halves of two tiles are weighed one after
/// the other.
template <class C>
class BlockConsumer {
 public:
  __device__ __forceinline__ BlockConsumer(typename C::SharedStorage& shared, const Params& params,
                                           int warpgroup)
      : p(params),
        head(C::kHeads > 1 ? warpgroup : 0),
        row(static_cast<int32_t>(threadIdx.x) % kWarpgroup / 32 * kWarpRows + lane() / 4),
        smem(shared),
        q(Tiles::q(smem.q[0][0])),
        k(Tiles::k(smem.slots[0])),
        v(Tiles::v(smem.slots[0])) {
    softmax.reset();
    clear(o);
  }

  __device__ __forceinline__ void run() {
    flags = next_flags();
    while (true) {
      const bool follows_plain = !(done & (Visit::hidden | Visit::tail));
      // Branches around whole visits: wgmma in flight where paths meet would be serialised.
      if (flags & Visit::pair) {
        step<true, Keys::pair>();
      } else if (flags & Visit::single) {
        follows_plain && !(flags & Visit::first) ? step<true, Keys::single>()
                                                 : step<false, Keys::single>();
      } else if (follows_plain && flags == 0) {
        step<true, Keys::tile>();
      } else if (!(flags & Visit::hidden)) {
        step<false, Keys::tile>();
      } else {
        const bool stops = flags & Visit::stop;
        pass_by();
        if (stops) break;
      }
    }
    if (lane() == 0) ptx::bulk_wait_complete();  // O is written, not only read from here
  }

 private:
  using Element = typename C::Element;
  using Tiles = BlockOperands<C>;
  using Visit = BlockVisit;
  enum class Keys { tile, single, pair };

  const Params& p;
  const int head;     // of those of the CTA
  const int32_t row;  // the thread's first; the second is 8 below

  typename C::MmaO mma_o;
  decltype(Tiles::o()) o;        // (MMA,1,1), what the softmax still divides
  decltype(Tiles::p()) weights;  // P of visit n - 1 (MMA,1,TKV/16)
  OnlineSoftmax softmax;
  float plus[2] = {0, 0};                   // what has been subtracted from the scores of visit n
  const uint32_t all_kept[2] = {~0u, ~0u};  // there is no dropout

  typename C::SharedStorage& smem;
  typename C::MmaS mma_s;
  decltype(Tiles::q(nullptr)) q;  // descriptors (MMA,1,HD/16,stages)
  decltype(Tiles::k(nullptr)) k;  // descriptors (MMA,1,HD/16,slots)
  decltype(Tiles::v(nullptr)) v;  // descriptors (MMA,1,4,slots)

  uint32_t n = 0;                 // visits so far
  Ring<C::kVisitRing> at_visit;   // of visit n
  Ring<C::kQStages> at_q;         // of visit n
  Ring<C::kSlots> at_slot;        // the first that nobody has waited for
  uint32_t flags = 0;             // of visit n
  uint32_t done = Visit::hidden;  // flags of visit n - 1; unless hidden, its P waits for P V

  __device__ __forceinline__ static int lane() { return threadIdx.x % 32; }
  __device__ __forceinline__ const Visit& visit() const { return smem.visit[at_visit.slot()]; }
  __device__ __forceinline__ const Visit& visit_before() const {
    return smem.visit[at_visit.before()];
  }
  __device__ __forceinline__ int q_slot() const { return C::kHeads * at_q.slot() + head; }
  /// Of visit n - 1, whose chain is over.
  __device__ __forceinline__ QueryTile queries_before() const {
    QueryTile queries = visit_before().queries;
    queries.q_head += head;
    return queries;
  }
  __device__ __forceinline__ uint32_t barrier() const {  // that joins the warpgroup
    return static_cast<uint32_t>(NamedBarrier::tail) + head;
  }

  /// The scores of visit n and the output of visit n - 1. A plain visit is as Consumer's.
  template <bool kPlain, Keys kKeys>
  __device__ __forceinline__ void step() {
    const uint32_t now = kPlain ? 0 : flags;
    const bool first = now & Visit::first, ends = first && n > 0;
    if (ends) at_q.advance();
    if (first) wait_full(smem.q_full, at_q);
    constexpr int kHalves = kKeys == Keys::single ? 1 : 2;
    auto s = partition_fragment_C(typename C::MmaS{},
                                  Shape<Int<kRows>, Int<kHalves * kHalfKeys>>{});  // (MMA,1,halves)
    const Held keys = hold();
    warpgroup_fence_operand(s);
    warpgroup_arrive();
    Tensor s_0 = half(s, 0);
    multiply(mma_s, false, q(_, _, _, q_slot()), k(_, _, _, keys.first.slot()), s_0);
    if constexpr (kHalves == 2) {
      Tensor s_1 = half(s, 1);
      multiply(mma_s, false, q(_, _, _, q_slot()), k(_, _, _, keys.second.slot()), s_1);
    }
    warpgroup_commit_batch();
    // A vote, for ptxas has to know that all lanes agree.
    const bool weighed = kPlain || __all_sync(~0u, !(done & Visit::hidden));
    const Held values = hold_values();
    if (weighed) {
      issue_output(kPlain ? done & ~Visit::tail : done, values);
    } else {
      warpgroup_commit_batch();  // of nothing: the scores are the last batch but one
    }
    float factor[2] = {};  // of O, once its chain is over
    if (first) begin_chain(factor);
    uint32_t seen[2] = {};  // under the products
    if (kKeys == Keys::tile && (now & Visit::masked)) visible_bits<C>(seen, visit(), row);
    warpgroup_wait<1>();
    warpgroup_fence_operand(s);
    release(keys);
    if constexpr (kKeys == Keys::tile) {
      if (now & Visit::masked) hide<C>(s, seen);
    }
    if constexpr (kKeys != Keys::pair) diminish<C>(p, softmax, plus, s);
    warpgroup_wait<0>();
    warpgroup_fence_operand(o);
    if (n > 0) release(values);
    if constexpr (kKeys == Keys::pair) {
      if (!weigh_pair(s)) part_pair(s);
    } else {
      weigh<C, kPlain>(p, softmax, plus, s, flags & Visit::first, all_kept, o, weights);
    }
    if (ends) end_chain(factor);
    advance<kPlain>();
  }

  /// The output of visit n - 1 alone: no row sees anything of visit n, or there is none.
  __device__ __forceinline__ void pass_by() {
    const bool stops = flags & Visit::stop, ends = n > 0, weighed = !(done & Visit::hidden);
    if (ends) at_q.advance();
    if (!stops) wait_full(smem.q_full, at_q);
    release(hold());
    const Held values = hold_values();
    if (weighed) issue_output(done, values);
    float factor[2] = {};  // of O, once its chain is over
    begin_chain(factor);
    warpgroup_wait<0>();
    warpgroup_fence_operand(o);
    if (n > 0) release(values);
    if (ends) end_chain(factor);
    if (!stops) advance<false>();
  }

  /// From the scores of the halves of two tiles to P, as weigh() one after the other; false:
  /// some row of the warpgroup needs a new base, and nothing is done that counts.
  template <class Scores>
  __device__ __forceinline__ bool weigh_pair(const Scores& s) {
    constexpr int kScores = decltype(size(s))::value, kHalf = kScores / 2;  // per thread
    const float less[2] = {-softmax.finite_base(0), -softmax.finite_base(1)};
    float added[2][2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float exponentials[kHalf];
      const auto exponent = [&](int i) {
        return fmaf(s(h * kHalf + i), p.scale_log2, less[i / 2 % 2]);
      };
      OnlineSoftmax::exponentiate(exponentials, exponent, added[h]);
      Tensor to = steps_of_half(weights, h);
      auto pairs = recast<uint32_t>(to);
      round_to<Element, false>(pairs, exponentials, all_kept);
    }
    // All of the warpgroup multiply together.
    const bool stays =
        OnlineSoftmax::fits(added[0]) && OnlineSoftmax::fits(added[1]) && softmax.based;
    if (ptx::named_barrier_or(barrier(), kWarpgroup, !stays)) return false;
#pragma unroll
    for (int r = 0; r < 2; ++r) softmax.sum[r] = softmax.sum[r] + added[0][r] + added[1][r];
    return true;
  }
  /// The halves of visit n one after the other, for a row takes a new base in one of them: P V of
  /// the first is in O before the second is weighed.
  template <class Scores>
  __device__ __forceinline__ void part_pair(const Scores& s) {
    weigh_half(s, 0);
    Ring<C::kSlots> at = at_slot;  // K of visit n + 1 comes first
    at.advance();
    at.advance();
    wait_full(smem.slot_full, at);
    warpgroup_fence_operand(o);
    warpgroup_arrive();
    multiply(mma_o, true, steps_of_half(weights, 0), v(_, _, _, at.slot()), o);
    warpgroup_commit_batch();
    warpgroup_wait<0>();
    warpgroup_fence_operand(o);
    weigh_half(s, 1);
    flags |= Visit::second;
  }
  template <class Scores>
  __device__ __forceinline__ void weigh_half(const Scores& s, int which) {
    auto part = make_fragment_like(half(s, which));
    copy(half(s, which), part);
    diminish<C>(p, softmax, plus, part);
    Tensor to = steps_of_half(weights, which);
    weigh<C, true>(p, softmax, plus, part, false, all_kept, o, to);
  }

  // Slots of the rings.
  struct Held {
    Ring<C::kSlots> first, second;
  };
  /// The next two slots, once both are full: a slot that is released early would let its loader
  /// miss a phase.
  __device__ __forceinline__ Held hold() {
    Held held{at_slot, at_slot};
    held.second.advance();
    at_slot = held.second;
    at_slot.advance();
    wait_full(smem.slot_full, held.first);
    wait_full(smem.slot_full, held.second);
    return held;
  }
  /// V of visit n - 1, if there is one.
  __device__ __forceinline__ Held hold_values() { return n > 0 ? hold() : Held{}; }
  __device__ __forceinline__ static void release(uint64_t& empty) {
    __syncwarp();
    if (lane() == 0) ptx::mbarrier_arrive(&empty);
  }
  __device__ __forceinline__ void release(const Held& held) const {
    __syncwarp();
    if (lane() > 0) return;
    ptx::mbarrier_arrive(&smem.slot_empty[held.first.slot()]);
    ptx::mbarrier_arrive(&smem.slot_empty[held.second.slot()]);
  }
  __device__ __forceinline__ uint32_t next_flags() const {
    wait_full(smem.visit_full, at_visit);
    return visit().flags;
  }
  template <bool kPlain>
  __device__ __forceinline__ void advance() {
    if (kPlain || n > 0) release(smem.visit_empty[at_visit.before()]);
    done = flags;
    ++n;
    at_visit.advance();
    flags = next_flags();
  }

  /// P V of visit n - 1, whose flags are `before`.
  __device__ __forceinline__ void issue_output(uint32_t before, const Held& values) {
    // Votes, for ptxas has to know that all lanes agree.
    const bool ahead = __any_sync(~0u, before & Visit::second);  // its first half is in O
    const bool single = __any_sync(~0u, before & Visit::single);
    if (before & Visit::tail) {
      const int32_t used = visit_before().k_used;
      clear_tail(smem.slots[values.first.slot()], used);
      clear_tail(smem.slots[values.second.slot()], max(used - kHalfKeys, 0));
    }
    warpgroup_fence_operand(o);
    warpgroup_arrive();
    if (!ahead) {
      multiply(mma_o, !(before & Visit::first), steps_of_half(weights, 0),
               v(_, _, _, values.first.slot()), o);
    }
    if (!single)
      multiply(mma_o, true, steps_of_half(weights, 1), v(_, _, _, values.second.slot()), o);
    warpgroup_commit_batch();
  }
  /// 0 * NaN is NaN: V rows that no query of the tile sees are cleared before they are multiplied.
  /// `slot`: 64 keys.
  __device__ __forceinline__ void clear_tail(Element* slot, int32_t used) const {
    constexpr int kLine = kSwizzleSpan * 2;
    const int thread = threadIdx.x % kWarpgroup;
#pragma unroll 1
    for (int part = 0; part < C::kHeadDimV / kSwizzleSpan; ++part) {
      auto* lines = reinterpret_cast<uint8_t*>(slot) + part * kHalfKeys * kLine;
#pragma unroll 1
      for (int at = used * kLine + thread * 16; at < kHalfKeys * kLine; at += kWarpgroup * 16)
        *reinterpret_cast<uint4*>(lines + at) = make_uint4(0, 0, 0, 0);
    }
    ptx::fence_async_shared();
    ptx::named_barrier(barrier(), kWarpgroup);
  }

  /// The k steps of P V that half `which` of the keys makes.
  template <class Steps>
  __device__ __forceinline__ static auto steps_of_half(Steps&& steps, int which) {
    return logical_divide(static_cast<Steps&&>(steps), make_tile(_, _, Int<kHalfKeys / 16>{}))(
        _, _, make_coord(_, which));
  }
  /// The scores of half `which` of the keys.
  template <class Scores>
  __device__ __forceinline__ static auto half(Scores& s, int which) {
    return make_tensor(s.data() + which * cosize_v<decltype(half_layout())>, half_layout());
  }
  __device__ __forceinline__ static constexpr auto half_layout() {
    return partition_fragment_C(typename C::MmaS{}, Shape<Int<kRows>, Int<kHalfKeys>>{}).layout();
  }

  /// Visit n is the first of its chain: that of visit n - 1 is complete but for P V.
  __device__ __forceinline__ void begin_chain(float (&factor)[2]) {
    if (n > 0) write_lse(p, queries_before(), softmax, row, factor);
    softmax.reset();
  }
  /// The chain of visit n - 1 is over, of whose O `factor` is still to be multiplied with.
  __device__ __forceinline__ void end_chain(const float (&factor)[2]) {
    store_output<C>(p, queries_before(), smem.q[at_q.before()][head], o, factor, row);
    if (lane() == 0) ptx::bulk_wait_read();
    release(smem.q_empty[at_q.before()]);
  }
};

}  // namespace verbatim::cuda::sm90::fwd
