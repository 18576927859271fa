// How the statistics of a query row, LSE and delta, reach the products they are subtracted from.
//
// A query is a column of S^T and dP^T, so every thread would have to load the values of all its
// columns, by count a tenth of what shared memory can move in a visit. Instead one more k step of
// the tensor cores subtracts them. A row carries eight 16-bit elements, [l0 l1 l2 d0 d1 d2 h 0],
// and the other operand of the step is constant, alike for all keys:
//
//   S  - LSE / scale = K Q^T  + unit * (first * l0 + l1 + l2) + hidden * h
//   dP - delta       = V dO^T +         first * d0 + d1 + d2
//
// Three elements hold a float's 24 bits. h makes every S of a row hugely negative: P = 0.
//
// Softcap and dropout come between product and subtraction: there a row carries two floats, and
// threads do load them.
#pragma once

#include <cutlass/numeric_types.h>

#include <cstdint>
#include <type_traits>

#include "backend/cuda/sm90/bwd/params.h"

namespace verbatim::cuda::sm90::bwd {

/// The statistics of a row in the kernel with softcap and dropout.
struct RowStats {
  float lse_log2;  // LSE in powers of two; +inf: a hidden row, P = 0
  float delta;
};

template <class Element>
struct StatCode {
  static constexpr bool kHalf = std::is_same_v<Element, cutlass::half_t>;  // its range is short
  static constexpr float kFirst = kHalf ? 1024 : 1;        // weight of the first of three elements
  static constexpr float kHidden = kHalf ? 32768 : 1;      // weight of h
  static constexpr float kHide = kHalf ? -65504 : -1e36f;  // h of a hidden row

  /// The eight elements of a row, LSE / scale in units of `unit`. LSE = -inf: hidden.
  __device__ static uint4 encode(float lse, float delta, float scale, float unit) {
    if (lse == -INFINITY) return make_uint4(0, 0, 0, pair(Element(kHide), Element(0)));
    Element l[3], d[3];
    split(-lse / (scale * unit), l);
    split(-delta, d);
    return make_uint4(pair(l[0], l[1]), pair(l[2], d[0]), pair(d[1], d[2]), 0);
  }

  /// A thread's word of the constant operand, 64 equal rows of 16: columns 2 (lane % 4) and the
  /// next. Columns 8 to 15 are 0.
  __device__ static uint32_t weights(int lane, bool of_scores, float scale, float unit) {
    const Element zero(0), one(of_scores ? unit : 1), first(of_scores ? kFirst * unit : kFirst);
    const Element hidden(of_scores ? copysignf(kHidden, scale) : 0);
    switch (lane % 4) {
      case 0:
        return of_scores ? pair(first, one) : 0;
      case 1:
        return of_scores ? pair(one, zero) : pair(zero, first);
      case 2:
        return of_scores ? 0 : pair(one, one);
      default:
        return pair(hidden, zero);
    }
  }

 private:
  __device__ static uint32_t pair(Element low, Element high) {
    return uint32_t{low.raw()} | uint32_t{high.raw()} << 16;
  }
  /// x = kFirst * parts[0] + parts[1] + parts[2].
  __device__ static void split(float x, Element (&parts)[3]) {
    parts[0] = Element(kHalf && fabsf(x) <= 32768 ? 0.0f : x / kFirst);
    x -= static_cast<float>(parts[0]) * kFirst;
    parts[1] = Element(x);
    parts[2] = Element(x - static_cast<float>(parts[1]));
  }
};

}  // namespace verbatim::cuda::sm90::bwd
