// What a consumer warpgroup of the sm90 forward keeps of its rows, and how scores become P.
#pragma once

#include "backend/cuda/sm90/fwd/mask.cuh"
#include "backend/cuda/sm90/fwd/output.cuh"
#include "backend/cuda/sm90/fwd/softmax.cuh"
#include "backend/cuda/sm90/gemm.cuh"

namespace verbatim::cuda::sm90::fwd {

/// A thread's registers of 64 rows.
template <class C>
struct Fragments {
  __device__ static auto o() {
    return partition_fragment_C(typename C::MmaO{}, Shape<Int<kRows>, Int<C::kHeadDimV>>{});
  }
  __device__ static auto p() {  // P, rounded, as the A operand of O
    return make_tensor<typename C::Element>(
        partition_shape_A(typename C::MmaO{}, Shape<Int<kRows>, Int<C::kTileKv>>{}));
  }
};

/// A thread's part of 64 rows: O, the softmax and P of the last visit. Scores, (MMA,1,..), are of
/// one visit's keys, or of the half that they see.
template <class C>
class Rows {
 protected:
  using Element = typename C::Element;
  using Visit = typename C::Visit;
  static constexpr bool kEarly = C::kEarly;

  __device__ __forceinline__ Rows(const Params& params, int32_t first_row)
      : p(params), row(first_row) {
    softmax.reset();
    clear(o);
  }

  const Params& p;
  const int32_t row;  // the thread's first; the second is 8 below

  typename C::MmaO mma_o;
  decltype(Fragments<C>::o()) o;        // (MMA,1,1), what the softmax still divides
  decltype(Fragments<C>::p()) weights;  // P of visit n - 1 (MMA,1,TKV/16)
  OnlineSoftmax softmax;
  float plus[2] = {0, 0};  // what has been subtracted from the scores of visit n

  /// The thread's first row among its warpgroup's.
  __device__ __forceinline__ static int32_t row_of_thread() {
    return static_cast<int32_t>(threadIdx.x) % kWarpgroup / 32 * kWarpRows + lane() / 4;
  }
  __device__ __forceinline__ static int lane() { return threadIdx.x % 32; }

  /// 0 * NaN is NaN: V rows that no query of the tile sees are cleared before they are multiplied.
  /// `tile`: kKeys of V. Every warpgroup clears for itself; writing zeros twice is harmless.
  template <int kKeys>
  __device__ __forceinline__ static void clear_tail(Element* tile, int32_t used, int barrier) {
    constexpr int kLine = kSwizzleSpan * 2;
    const int thread = threadIdx.x % kWarpgroup;
#pragma unroll 1
    for (int part = 0; part < C::kHeadDimV / kSwizzleSpan; ++part) {
      auto* lines = reinterpret_cast<uint8_t*>(tile) + part * kKeys * kLine;
#pragma unroll 1
      for (int at = used * kLine + thread * 16; at < kKeys * kLine; at += kWarpgroup * 16)
        *reinterpret_cast<uint4*>(lines + at) = make_uint4(0, 0, 0, 0);
    }
    ptx::fence_async_shared();
    ptx::named_barrier(static_cast<uint32_t>(NamedBarrier::tail) + barrier, kWarpgroup);
  }

  /// Caps and hides the scores of a visit, whose flags are `now`.
  template <class Scores>
  __device__ __forceinline__ void hide_scores(Scores& s, const Visit& visit, uint32_t now) const {
    if constexpr (C::kExtras) {
      if (p.softcap_log2 != 0) {
#pragma unroll
        for (int i = 0; i < size(s); ++i) s(i) = tanh_from_log2(s(i) * p.softcap_log2);
      }
    }
    if (now & Visit::masked) hide<C>(s, visit, row);
  }
  template <class Scores>
  __device__ __forceinline__ void diminish(Scores& s) {
    if constexpr (kEarly) {
      plus[0] = softmax.finite_base(0);
      plus[1] = softmax.finite_base(1);
#pragma unroll
      for (int i = 0; i < size(s); ++i) s(i) = fmaf(s(i), p.scale_log2, -plus[i / 2 % 2]);
      warpgroup_fence_operand(s);
    }
  }
  /// From the scores of `visit` to P, in `to`. What O has so far keeps in step with the softmax's
  /// base. A plain visit is neither masked nor the first of its chain.
  template <bool kPlain, class Scores, class Weights>
  __device__ __forceinline__ void weigh(const Scores& s, Weights& to, const Visit& visit,
                                        uint32_t flags) {
    uint32_t kept[2] = {~0u, ~0u};
    if constexpr (C::kExtras) {
      if (p.dropout.enabled()) draw(kept, visit);
    }
    constexpr int kScores = decltype(size(s))::value;  // per thread
    float exponentials[kScores], added[2] = {0, 0};
    const float scale = kEarly ? 1.0f : p.scale_log2;
    const auto rebase = [&] {
      float rescale[2];
      softmax.template rebase<kScores>(s, scale, plus, added, rescale);
      if (!kPlain && (flags & Visit::first)) return;  // what O holds is of the chain before
#pragma unroll
      for (int i = 0; i < size(o); ++i) o(i) *= rescale[i / 2 % 2];
    };
    const auto exponentiate = [&](auto&& exponent) {
      OnlineSoftmax::exponentiate(exponentials, exponent, added);
      auto pairs = recast<uint32_t>(to);
      round_to<Element, C::kExtras>(pairs, exponentials, kept);
    };
    const auto exponentiate_from_base = [&] {
      const float rest[2] = {plus[0] - softmax.finite_base(0), plus[1] - softmax.finite_base(1)};
      exponentiate([&](int i) { return fmaf(s(i), scale, rest[i / 2 % 2]); });
    };
    if constexpr (kPlain && kEarly) {
      exponentiate(s);
    } else {
      if (!kPlain && !softmax.based) rebase();
      exponentiate_from_base();
    }
    if (!OnlineSoftmax::fits(added) || (kPlain && !softmax.based)) {
      rebase();
      exponentiate_from_base();
    }
    softmax.sum[0] += added[0];
    softmax.sum[1] += added[1];
  }
  /// The k steps of P V that half `which` of the keys makes.
  template <class Steps>
  __device__ __forceinline__ static auto steps_of_half(Steps&& steps, int which) {
    return logical_divide(static_cast<Steps&&>(steps), make_tile(_, _, Int<kHalfKeys / 16>{}))(
        _, _, make_coord(_, which));
  }
  /// From the scores of the halves of two tiles to P, as weigh() would one after the other; false:
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
      round_to<Element, false>(pairs, exponentials, {});
    }
    // All of the warpgroup multiply together.
    const bool stays =
        OnlineSoftmax::fits(added[0]) && OnlineSoftmax::fits(added[1]) && softmax.based;
    if (ptx::named_barrier_or(static_cast<uint32_t>(NamedBarrier::tail), kWarpgroup, !stays))
      return false;
#pragma unroll
    for (int r = 0; r < 2; ++r) softmax.sum[r] = softmax.sum[r] + added[0][r] + added[1][r];
    return true;
  }
  /// Which elements of P of a visit dropout keeps.
  __device__ __forceinline__ void draw(uint32_t (&kept)[2], const Visit& visit) const {
    const QueryTile& queries = visit.queries;
    const DropoutOrigin origin = p.plan.dropout_origin(queries.head, queries.tile);
    draw_kept<C::kTileKv>(kept, p.dropout, origin.sequence, p.plan.first_q_head + queries.q_head,
                          queries.begin - origin.q + row, visit.k_begin - origin.k, lane() % 4);
  }
};

}  // namespace verbatim::cuda::sm90::fwd
