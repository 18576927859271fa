// A consumer warpgroup of the sm90 forward: from tiles in shared memory to O and LSE.
#pragma once

#include "backend/cuda/sm90/fwd/mask.cuh"
#include "backend/cuda/sm90/fwd/output.cuh"
#include "backend/cuda/sm90/fwd/weigh.cuh"
#include "backend/cuda/sm90/gemm.cuh"
#include "backend/cuda/sm90/pipeline.cuh"

namespace verbatim::cuda::sm90::fwd {

/// What a warpgroup multiplies: its rows of Q, and K and V of all stages.
template <class C>
struct Operands {
  __device__ static auto q(typename C::Element* tiles, int group) {
    Tensor all = make_tensor(make_smem_ptr(tiles), typename C::LayoutQ{});  // (TQ,HD,stages)
    Tensor mine = local_tile(all, Shape<Int<kRows>, Int<C::kHeadDim>, Int<C::kQStages>>{},
                             make_coord(group, 0, 0));                  // (64,HD,stages)
    return typename C::MmaS{}.get_slice(0).partition_fragment_A(mine);  // (MMA,1,HD/16,stages)
  }
  __device__ static auto k(typename C::Element* tiles) {
    Tensor all = make_tensor(make_smem_ptr(tiles), typename C::LayoutK{});  // (TKV,HD,stages)
    return typename C::MmaS{}.get_slice(0).partition_fragment_B(all);       // (MMA,1,HD/16,stages)
  }
  __device__ static auto k_halves(typename C::Element* tiles) {
    Tensor all = make_tensor(make_smem_ptr(tiles), typename C::LayoutK{});  // (TKV,HD,stages)
    Tensor halves = local_tile(all, Shape<Int<kHalfKeys>, Int<C::kHeadDim>, Int<C::kKStages>>{},
                               make_coord(_, 0, 0));  // (64,HD,stages,2)
    return
        typename C::MmaSHalf{}.get_slice(0).partition_fragment_B(halves);  // (MMA,1,HD/16,stages,2)
  }
  __device__ static auto v(typename C::Element* tiles) {
    Tensor all = make_tensor(make_smem_ptr(tiles), typename C::LayoutV{});  // (HDV,TKV,stages)
    return typename C::MmaO{}.get_slice(0).partition_fragment_B(all);       // (MMA,1,TKV/16,stages)
  }
  template <bool kHalf>
  __device__ static auto s() {
    if constexpr (kHalf) {
      return partition_fragment_C(typename C::MmaSHalf{}, Shape<Int<kRows>, Int<kHalfKeys>>{});
    } else {
      return partition_fragment_C(typename C::MmaS{}, Shape<Int<kRows>, Int<C::kTileKv>>{});
    }
  }
  __device__ static auto o() {
    return partition_fragment_C(typename C::MmaO{}, Shape<Int<kRows>, Int<C::kHeadDimV>>{});
  }
  __device__ static auto p() {  // P, rounded, as the A operand of O
    return make_tensor<typename C::Element>(
        partition_shape_A(typename C::MmaO{}, Shape<Int<kRows>, Int<C::kTileKv>>{}));
  }
};

/// Rows 64 * group .. of every query tile. Visits overlap: step() issues S of visit n and P V of
/// visit n - 1 together, so what a chain leaves is written one visit into the next.
template <class C>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(typename C::SharedStorage& shared, const Params& params,
                                      int warpgroup)
      : smem(shared),
        p(params),
        group(warpgroup),
        row(kRows * group + static_cast<int>(threadIdx.x) % kWarpgroup / 32 * kWarpRows +
            lane() / 4),
        q(Operands<C>::q(smem.q[0], group)),
        k(Operands<C>::k(smem.k[0])),
        k_halves(Operands<C>::k_halves(smem.k[0])),
        v(Operands<C>::v(smem.v[0])) {
    softmax.reset();
    clear(o);
  }

  __device__ __forceinline__ void run() {
    flags = next_flags();
    if (group + 1 == C::kConsumers) pass_token();
    while (true) {
      const bool plain = ((flags & ~kHalfFlags) | (done & (Visit::hidden | Visit::tail))) == 0;
      const bool cut = C::kHalves && (flags & ~Visit::tail) == Visit::masked;
      // Branches around whole visits: wgmma in flight where paths meet would be serialised.
      if (C::kHalves && (flags & Visit::half)) {
        plain ? step<Kind::plain, true>() : step<Kind::any, true>();
      } else if (plain) {
        step<Kind::plain, false>();
      } else if (cut && !(done & Visit::hidden)) {
        if constexpr (C::kHalves) step<Kind::cut, false>();
      } else if (cut) {
        if constexpr (C::kHalves) step<Kind::cut_alone, false>();
      } else if (!(flags & Visit::hidden)) {
        step<Kind::any, false>();
      } else {
        const bool stops = flags & Visit::stop;
        pass_by();
        if (stops) break;
      }
    }
    if (group == 0) take_token();                // it is still on its way
    if (lane() == 0) ptx::bulk_wait_complete();  // O is written, not only read from here
  }

 private:
  using Element = typename C::Element;
  using Visit = typename C::Visit;
  using Tiles = Operands<C>;
  enum class Kind { plain, cut, cut_alone, any };
  static constexpr uint32_t kBegins = Visit::first | Visit::fresh;  // O has nothing of the chain
  static constexpr uint32_t kHalfFlags = C::kHalves ? Visit::half : 0;

  typename C::SharedStorage& smem;
  const Params& p;
  const int group;
  const int32_t row;  // the thread's first; the second is 8 below

  typename C::MmaS mma_s;
  typename C::MmaSHalf mma_s_half;
  typename C::MmaO mma_o;
  decltype(Tiles::q(nullptr, 0)) q;             // descriptors (MMA,1,HD/16,stages)
  decltype(Tiles::k(nullptr)) k;                // descriptors (MMA,1,HD/16,stages)
  decltype(Tiles::k_halves(nullptr)) k_halves;  // descriptors (MMA,1,HD/16,stages,2)
  decltype(Tiles::v(nullptr)) v;                // descriptors (MMA,1,TKV/16,stages)
  decltype(Tiles::o()) o;                       // (MMA,1,1), what the softmax still divides
  decltype(Tiles::p()) weights;                 // P of visit n - 1 (MMA,1,TKV/16)

  uint32_t n = 0;          // visits so far: a visit has one tile of K and one of V
  Ring<C::kQStages> at_q;  // of visit n
  Ring<C::kKStages> at_k;  // of visit n
  Ring<C::kVStages> at_v;  // of visit n - 1
  OnlineSoftmax softmax;
  uint32_t flags = 0;             // of visit n
  uint32_t done = Visit::hidden;  // flags of visit n - 1; unless hidden, its P waits for P V
  float plus[2] = {0, 0};         // what has been subtracted from the scores of visit n

  __device__ __forceinline__ static int lane() { return threadIdx.x % 32; }
  __device__ __forceinline__ const Visit& visit(uint32_t i) const {
    return smem.visit[i % kVisitRing];
  }

  /// The scores of visit n and the output of visit n - 1. A plain visit is neither masked nor the
  /// first of its chain, a cut one masked: their code has no jumps over rare cases, each of which
  /// waits for instructions. cut_alone: visit n - 1 was passed by. kHalf: the rows see all of one
  /// half of the keys, which alone is multiplied.
  template <Kind kKind, bool kHalf>
  __device__ __forceinline__ void step() {
    constexpr bool kPlain = kKind == Kind::plain, kUsual = kKind != Kind::any;
    const uint32_t now = kPlain ? 0 : kUsual ? +Visit::masked : flags;
    const bool first = now & Visit::first, ends = first && n > 0;
    if (ends) at_q.advance();
    if (first) wait_full(smem.q_full, at_q);
    auto s = Tiles::template s<kHalf>();  // (MMA,1,1)
    take_token();
    if constexpr (kHalf) {
      gemm(mma_s_half, false, q(_, _, _, at_q.slot()),
           k_halves(_, _, _, at_k.slot(), half_of(flags)), s);
    } else {
      gemm(mma_s, false, q(_, _, _, at_q.slot()), k(_, _, _, at_k.slot()), s);
    }
    // A vote, for ptxas has to know that all lanes agree.
    const bool weighed =
        kKind == Kind::any ? __all_sync(~0u, !(done & Visit::hidden)) : kKind != Kind::cut_alone;
    if (weighed) {
      issue_output(kUsual ? done & (kBegins | kHalfFlags | (kPlain ? 0u : Visit::tail)) : done);
    } else {
      warpgroup_commit_batch();  // of nothing: the scores are the last batch but one
    }
    pass_token();
    float factor[2] = {};  // of O, once its chain is over
    if (first) begin_chain(factor);
    uint32_t seen[2] = {};  // under the products
    if (!kHalf && (now & Visit::masked)) visible_bits<C>(seen, visit(n), row);
    warpgroup_wait<1>();
    warpgroup_fence_operand(s);
    release_keys();
    if constexpr (!kHalf) hide_scores(s, now, seen);
    diminish<C>(p, softmax, plus, s);
    warpgroup_wait<0>();
    warpgroup_fence_operand(o);
    if (weighed) release_values();
    weigh<kUsual>(s);
    if (ends) end_chain(factor);
    advance<kUsual>();
  }

  /// The output of visit n - 1 alone: this warpgroup sees nothing of visit n, or there is none.
  __device__ __forceinline__ void pass_by() {
    const bool stops = flags & Visit::stop, first = flags & Visit::first;
    const bool ends = first && n > 0, weighed = !(done & Visit::hidden);
    if (ends) at_q.advance();
    if (first && !stops) wait_full(smem.q_full, at_q);
    take_token();
    if (weighed) issue_output(done);
    pass_token();
    float factor[2] = {};  // of O, once its chain is over
    if (first) begin_chain(factor);
    release_keys();
    warpgroup_wait<0>();
    warpgroup_fence_operand(o);
    if (weighed) release_values();
    if (ends) end_chain(factor);
    if (stops) return;
    wait_full(smem.v_full, at_v);
    release_values();
    advance<false>();
    if (done & kBegins) flags |= Visit::fresh;
  }

  // The token that orders the warpgroups' products.
  __device__ __forceinline__ void take_token() const {
    ptx::named_barrier(static_cast<uint32_t>(NamedBarrier::token) + group, 2 * kWarpgroup);
  }
  __device__ __forceinline__ void pass_token() const {
    const int next = group + 1 == C::kConsumers ? 0 : group + 1;
    ptx::named_barrier_arrive(static_cast<uint32_t>(NamedBarrier::token) + next, 2 * kWarpgroup);
  }

  // Slots of the rings.
  __device__ __forceinline__ static void release(uint64_t& empty) {
    __syncwarp();
    if (lane() == 0) ptx::mbarrier_arrive(&empty);
  }
  __device__ __forceinline__ void release_keys() {
    release(smem.k_empty[at_k.slot()]);
    at_k.advance();
  }
  __device__ __forceinline__ void release_values() {
    release(smem.v_empty[at_v.slot()]);
    at_v.advance();
  }
  /// Flags of visit n, the next whose K is waited for. Its record comes before its K.
  __device__ __forceinline__ uint32_t next_flags() const {
    wait_full(smem.k_full, at_k);
    return visit(n).flags[group] & ~(C::kHalves ? Visit::asks : 0u);
  }
  template <bool kPlain>
  __device__ __forceinline__ void advance() {
    if (kPlain || n > 0) release(smem.visit_empty[(n - 1) % kVisitRing]);
    done = flags;
    ++n;
    flags = next_flags();
  }

  /// P V of visit n - 1, whose flags are `before`.
  __device__ __forceinline__ void issue_output(uint32_t before) {
    wait_full(smem.v_full, at_v);
    if (before & Visit::tail) clear_tail(smem.v[at_v.slot()], visit(n - 1).k_used);
    // A vote, for ptxas has to know that all lanes agree.
    if (C::kHalves && __any_sync(~0u, before & Visit::half)) {
      gemm(mma_o, !(before & kBegins), steps_of_half(weights, 0),
           steps_of_half(v(_, _, _, at_v.slot()), half_of(before)), o);
    } else {
      gemm(mma_o, !(before & kBegins), weights, v(_, _, _, at_v.slot()), o);
    }
  }
  /// Which half of the keys a visit with such flags shows.
  __device__ __forceinline__ static int half_of(uint32_t of) {
    return __shfl_sync(~0u, (of & Visit::half_1) != 0, 0);
  }
  /// The k steps of P V that half `which` of the keys makes.
  template <class Steps>
  __device__ __forceinline__ static auto steps_of_half(const Steps& steps, int which) {
    return logical_divide(steps, make_tile(_, _, Int<kHalfKeys / 16>{}))(_, _,
                                                                         make_coord(_, which));
  }
  /// 0 * NaN is NaN: V rows that no query of the tile sees are cleared before they are multiplied.
  /// Every warpgroup clears for itself; writing zeros twice is harmless.
  __device__ __forceinline__ void clear_tail(Element* tile, int32_t used) const {
    constexpr int kLine = kSwizzleSpan * 2;
    const int thread = threadIdx.x % kWarpgroup;
#pragma unroll 1
    for (int part = 0; part < C::kHeadDimV / kSwizzleSpan; ++part) {
      auto* lines = reinterpret_cast<uint8_t*>(tile) + part * C::kTileKv * kLine;
#pragma unroll 1
      for (int at = used * kLine + thread * 16; at < C::kTileKv * kLine; at += kWarpgroup * 16)
        *reinterpret_cast<uint4*>(lines + at) = make_uint4(0, 0, 0, 0);
    }
    ptx::fence_async_shared();
    ptx::named_barrier(static_cast<uint32_t>(NamedBarrier::tail) + group, kWarpgroup);
  }

  /// Visit n is the first of its chain: that of visit n - 1 is complete but for P V.
  __device__ __forceinline__ void begin_chain(float (&factor)[2]) {
    if (n > 0) write_lse(p, visit(n - 1).queries, softmax, row, factor);
    softmax.reset();
  }
  /// The chain of visit n - 1 is over, of whose O `factor` is still to be multiplied with.
  __device__ __forceinline__ void end_chain(const float (&factor)[2]) {
    store_output<C>(p, visit(n - 1).queries, smem.q[at_q.before()], o, factor, row);
    if (lane() == 0) ptx::bulk_wait_read();
    release(smem.q_empty[at_q.before()]);
  }

  /// Caps and hides the scores of visit n, whose flags are `now`.
  template <class Scores>
  __device__ __forceinline__ void hide_scores(Scores& s, uint32_t now,
                                              const uint32_t (&seen)[2]) const {
    if constexpr (C::kExtras) {
      if (p.softcap_log2 != 0) {
#pragma unroll
        for (int i = 0; i < size(s); ++i) s(i) = tanh_from_log2(s(i) * p.softcap_log2);
      }
    }
    if (now & Visit::masked) hide<C>(s, seen);
  }
  /// From the scores of visit n to P.
  template <bool kPlain, class Scores>
  __device__ __forceinline__ void weigh(const Scores& s) {
    uint32_t kept[2] = {~0u, ~0u};
    if constexpr (C::kExtras) {
      if (p.dropout.enabled()) draw(kept);
    }
    fwd::weigh<C, kPlain>(p, softmax, plus, s, flags & Visit::first, kept, o, weights);
  }
  /// Which elements of P of visit n dropout keeps.
  __device__ __forceinline__ void draw(uint32_t (&kept)[2]) const {
    const QueryTile& queries = visit(n).queries;
    const DropoutOrigin origin = p.plan.dropout_origin(queries.head, queries.tile);
    draw_kept<C::kTileKv>(kept, p.dropout, origin.sequence, p.plan.first_q_head + queries.q_head,
                          queries.begin - origin.q + row, visit(n).k_begin - origin.k, lane() % 4);
  }
};

}  // namespace verbatim::cuda::sm90::fwd
