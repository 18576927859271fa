// The compiled instances of the sm90 forward kernel.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/sm90/fwd/args.h"
#include "verbatim/tensor.h"

namespace verbatim::cuda::sm90 {

/// Enqueues the kernel of a tile shape on `blocks` blocks. kExtras: with softcap and dropout.
template <class Tile, Dtype kDtype, bool kExtras>
cudaError_t launch(const FwdArgs& args, int32_t blocks, cudaStream_t stream);

/// Shared memory of one of its blocks, in bytes.
template <class Tile, Dtype kDtype, bool kExtras>
int64_t shared_bytes();

}  // namespace verbatim::cuda::sm90
