// Numbers as results have them.
#pragma once

namespace verbatim::cuda {

/// factor * x, rounded once, and +0 where it is 0: the sign of a sum that is 0 depends on the zeros
/// that hidden positions of a tile add.
__device__ __forceinline__ float result_of(float x, float factor) { return fmaf(x, factor, 0.0f); }

}  // namespace verbatim::cuda
