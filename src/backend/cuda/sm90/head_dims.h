// The head dims that the Hopper kernels run, and as what.
#pragma once

#include <cstdint>

namespace verbatim::cuda::sm90 {

/// The head dim of Q and K of the instance that runs a problem. Its columns behind the problem's
/// hold zeros, which change no sum, and are not stored. 0: no instance does.
constexpr int64_t padded_head_dim(int64_t head_dim, int64_t head_dim_v) {
  if (head_dim == 192 && head_dim_v == 128) return 192;
  if (head_dim != head_dim_v || head_dim % 8 != 0 || head_dim > 128) return 0;
  return head_dim <= 64 ? 64 : 128;
}

/// What kernels say that they take.
inline constexpr const char* kHeadDims =
    "equal head dims that are multiples of 8 up to 128, or 192 with 128 of V";

}  // namespace verbatim::cuda::sm90
