// Numbers as results have them.
#pragma once

namespace verbatim::cuda {

/// factor * x, rounded once, and +0 where the sum x is 0: its sign depends on the zeros that hidden
/// positions of a tile add. What only rounds to -0 depends on what is seen.
__device__ __forceinline__ float result_of(float x, float factor) { return fmaf(x, factor, 0.0f); }

}  // namespace verbatim::cuda
