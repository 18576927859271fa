// What the registry's row knows of the compiled instances.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/sm90/bwd/params.h"
#include "backend/cuda/sm90/variant.h"

namespace verbatim::cuda {
struct NoRecorder;
class Recorder;
}  // namespace verbatim::cuda

namespace verbatim::cuda::sm90::bwd {

/// Enqueues statistics, the main kernel on `blocks` CTAs, and dQ from its sum. With `together` the
/// CTAs start all at once or not yet: for plans whose waits need several of them. The main
/// kernel with Recorder, which only plain instances of bf16 have, fills Params::record.
template <int kHeadDim, Dtype kDtype, Variant kVariant, class Recorder>
cudaError_t launch(const Params& params, int32_t blocks, bool together, cudaStream_t stream);

template <int kHeadDim, Dtype kDtype, Variant kVariant>
int64_t shared_bytes();

}  // namespace verbatim::cuda::sm90::bwd
