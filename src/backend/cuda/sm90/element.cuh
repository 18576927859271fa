// What the elements of tensors are in the sm90 kernels.
#pragma once

#include <cutlass/numeric_types.h>

#include <type_traits>

#include "verbatim/tensor.h"

namespace verbatim::cuda::sm90 {

/// CUTLASS's type of bf16 or f16.
template <Dtype kDtype>
using ElementOf = std::conditional_t<kDtype == Dtype::bf16, cutlass::bfloat16_t, cutlass::half_t>;

}  // namespace verbatim::cuda::sm90
