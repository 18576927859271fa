// The head dims that kernels compute with: those of Hopper run some as wider ones.
#pragma once

#include <cstdint>
#include <string_view>

#include "contract/contract.h"

namespace verbatim::contract {

/// Head dims of Q and K, and of V.
struct HeadDims {
  int64_t qk, v;
};

/// Of the Hopper instance that runs a problem. Its columns behind the problem's hold zeros, which
/// change no sum, and are not stored. qk = 0: no instance does.
constexpr HeadDims sm90_head_dims(int64_t head_dim, int64_t head_dim_v) {
  if (head_dim == 192 && head_dim_v == 128) return {192, 128};
  if (head_dim != head_dim_v || head_dim % 8 != 0 || head_dim > 128) return {0, 0};
  return head_dim <= 64 ? HeadDims{64, 64} : HeadDims{128, 128};
}

/// Of the kernels of an arithmetic, for memory and for time.
constexpr HeadDims head_dims_of(std::string_view arithmetic, const Problem& problem) {
  return arithmetic == kSm90 ? sm90_head_dims(problem.head_dim, problem.head_dim_v)
                             : HeadDims{problem.head_dim, problem.head_dim_v};
}

/// What kernels say that they take.
inline constexpr const char* kSm90HeadDims =
    "equal head dims that are multiples of 8 up to 128, or 192 with 128 of V";

}  // namespace verbatim::contract
