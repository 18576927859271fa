// What the registry's row knows of the compiled instances.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/sm90/bwd/params.h"

namespace verbatim::cuda {
struct NoRecorder;
class Recorder;
}  // namespace verbatim::cuda

namespace verbatim::cuda::sm90_bwd {

/// Enqueues statistics, the main kernel on `blocks` CTAs, and dQ from its sum. The main kernel with
/// Recorder, which bf16 only has, fills Params::record.
template <int kHeadDim, Dtype kDtype, class Recorder>
cudaError_t launch(const Params& params, int32_t blocks, cudaStream_t stream);

template <int kHeadDim, Dtype kDtype>
int64_t shared_bytes();

}  // namespace verbatim::cuda::sm90_bwd
