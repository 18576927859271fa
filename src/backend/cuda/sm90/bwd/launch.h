// What the registry's row knows of the compiled instances.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/sm90/bwd/params.h"

namespace verbatim::cuda {
struct NoRecorder;
class Recorder;
}  // namespace verbatim::cuda

namespace verbatim::cuda::sm90::bwd {

/// Enqueues statistics, the main kernel on `blocks` CTAs, and dQ from its sum. With `together` the
/// CTAs start all at once or not yet: for plans whose waits need several of them. kExtras: with
/// softcap and dropout. The main kernel with Recorder, which only bf16 without extras has, fills
/// Params::record.
template <int kHeadDim, Dtype kDtype, bool kExtras, class Recorder>
cudaError_t launch(const Params& params, int32_t blocks, bool together, cudaStream_t stream);

template <int kHeadDim, Dtype kDtype, bool kExtras>
int64_t shared_bytes();

}  // namespace verbatim::cuda::sm90::bwd
