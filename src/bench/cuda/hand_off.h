// How fast tiles of dQ and flags travel between multiprocessors: kernels of their own, for sm_90.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace verbatim::bench {

/// Enqueues `blocks` CTAs, one a multiprocessor, that each add `count` tiles of `bytes` bytes to
/// `slots` places in turn, waiting for each to be complete. cycles[b]: clock cycles of CTA b.
cudaError_t reduce_tiles(float* memory, int64_t slots, int32_t bytes, int32_t count, int32_t blocks,
                         long long* cycles);

/// Enqueues `blocks` CTAs, an even number, of which each two pass a flag back and forth `count`
/// times. `flags` holds one per pair, 128 bytes apart, zeroed. cycles[b] as above.
cudaError_t pass_flags(int32_t* flags, int32_t count, int32_t blocks, long long* cycles);

}  // namespace verbatim::bench
