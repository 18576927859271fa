// What the registry's row knows of the compiled instances.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/sm90/bwd/params.h"

namespace verbatim::cuda::sm90_bwd {

/// Enqueues statistics, the main kernel on `blocks` CTAs, and dQ from its sum.
template <int kHeadDim, Dtype kDtype>
cudaError_t launch(const Params& params, int32_t blocks, cudaStream_t stream);

template <int kHeadDim, Dtype kDtype>
int64_t shared_bytes();

}  // namespace verbatim::cuda::sm90_bwd
