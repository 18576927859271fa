// From scores to P: what a thread does to its two rows of a visit.
#pragma once

#include "backend/cuda/sm90/fwd/config.h"
#include "backend/cuda/sm90/fwd/params.h"
#include "backend/cuda/sm90/fwd/softmax.cuh"

namespace verbatim::cuda::sm90::fwd {

/// Scales scores and subtracts the base, which `plus` keeps, where there is time for it.
template <class C, class Scores>
__device__ __forceinline__ void diminish(const Params& p, const OnlineSoftmax& softmax,
                                         float (&plus)[2], Scores& s) {
  if constexpr (C::kEarly) {
    plus[0] = softmax.finite_base(0);
    plus[1] = softmax.finite_base(1);
#pragma unroll
    for (int i = 0; i < size(s); ++i) s(i) = fmaf(s(i), p.scale_log2, -plus[i / 2 % 2]);
    warpgroup_fence_operand(s);
  }
}

/// From diminished scores to P, in `to`. What O has so far keeps in step with the softmax's base,
/// unless the visit is the first of its chain: then it is of the chain before. A plain visit is
/// neither masked nor the first.
template <class C, bool kPlain, class Scores, class Output, class Weights>
__device__ __forceinline__ void weigh(const Params& p, OnlineSoftmax& softmax,
                                      const float (&plus)[2], const Scores& s, bool first,
                                      const uint32_t (&kept)[2], Output& o, Weights& to) {
  constexpr int kScores = decltype(size(s))::value;  // per thread
  float exponentials[kScores], added[2] = {0, 0};
  const float scale = C::kEarly ? 1.0f : p.scale_log2;
  const auto rebase = [&] {
    float rescale[2];
    softmax.template rebase<kScores>(s, scale, plus, added, rescale);
    if (!kPlain && first) return;
#pragma unroll
    for (int i = 0; i < size(o); ++i) o(i) *= rescale[i / 2 % 2];
  };
  const auto exponentiate = [&](auto&& exponent) {
    OnlineSoftmax::exponentiate(exponentials, exponent, added);
    auto pairs = recast<uint32_t>(to);
    round_to<typename C::Element, C::kExtras>(pairs, exponentials, kept);
  };
  const auto exponentiate_from_base = [&] {
    const float rest[2] = {plus[0] - softmax.finite_base(0), plus[1] - softmax.finite_base(1)};
    exponentiate([&](int i) { return fmaf(s(i), scale, rest[i / 2 % 2]); });
  };
  if constexpr (kPlain && C::kEarly) {
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

}  // namespace verbatim::cuda::sm90::fwd
