// From the problem's types and sizes to template arguments.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <string>
#include <type_traits>

#include "verbatim/problem.h"

namespace verbatim::cuda::sm80 {

template <int kValue>
using Int = std::integral_constant<int, kValue>;

/// Calls f(element, head_dim, head_dim_v) with __nv_bfloat16{} or __half{} and the padded head
/// dims.
template <class F>
decltype(auto) dispatch(Dtype dtype, int64_t head_dim, int64_t head_dim_v, F&& f) {
  const auto with_element = [&](auto element) {
    const int64_t widest = std::max(head_dim, head_dim_v);
    if (widest <= 64) return f(element, Int<64>{}, Int<64>{});
    if (widest <= 128) return f(element, Int<128>{}, Int<128>{});
    if (head_dim <= 192 && head_dim_v <= 128) return f(element, Int<192>{}, Int<128>{});
    return f(element, Int<256>{}, Int<256>{});
  };
  return dtype == Dtype::bf16 ? with_element(__nv_bfloat16{}) : with_element(__half{});
}

/// What the sm80 kernels ask of a problem in both passes; empty when it has it.
inline std::string lacks(const Problem& problem) {
  if (problem.dtype != Dtype::bf16 && problem.dtype != Dtype::f16) return "dtype bf16 or f16";
  const int64_t widest = std::max(problem.head_dim, problem.head_dim_v);
  if (problem.head_dim % 8 != 0 || problem.head_dim_v % 8 != 0 || widest > 256) {
    return "head dims that are multiples of 8 up to 256";
  }
  return "";
}

}  // namespace verbatim::cuda::sm80
