// cuDNN's attention on the same tensors, for rows beside ours. Without its headers
// cudnn_absent.cpp stands in.
#pragma once

#include <string>

#include "bench/attention.h"

namespace verbatim::bench {

/// What results say about cuDNN: the version that runs, or why none can. Looks for libcudnn.so.9 by
/// name, or at the path in $VERBATIM_CUDNN, and for the CUDA runtime that it needs.
struct CudnnFacts {
  std::string version;  // "9.13.0"; empty: `missing` says why
  std::string missing;
};
const CudnnFacts& cudnn_facts();

/// Both passes of `problem` under a full or causal mask on the current device, in the default
/// stream. `deterministic` asks cuDNN for a backward whose bits repeat; its forward's always do.
/// Throws Error(unsupported) with cuDNN's words where it has no kernel.
Passes make_cudnn(const Device& device, const Problem& problem, const Mask& mask,
                  const Tensors& tensors, bool deterministic);

}  // namespace verbatim::bench
