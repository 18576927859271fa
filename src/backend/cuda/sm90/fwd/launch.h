// The compiled instances of the sm90 forward kernel.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/sm90/fwd/params.h"
#include "backend/cuda/sm90/variant.h"
#include "verbatim/tensor.h"

namespace verbatim::cuda::sm90::fwd {

/// Enqueues the kernel on as many CTAs as it has work for and `multiprocessors` hold.
template <int kHeadDim, int kHeadDimV, Dtype kDtype, Variant kVariant>
cudaError_t launch(const Params& params, int32_t multiprocessors, cudaStream_t stream);

/// Shared memory of one of its CTAs, in bytes.
template <int kHeadDim, int kHeadDimV, Dtype kDtype, Variant kVariant>
int64_t shared_bytes();

}  // namespace verbatim::cuda::sm90::fwd
