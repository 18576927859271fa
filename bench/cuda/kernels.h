// The benchmark's own kernels, all on the default stream.
#pragma once

#include <cstddef>
#include <cstdint>

namespace verbatim::bench {

/// N(0, 1) in bf16 from a counter (SplitMix64, Box-Muller) on the device.
void fill_normal(void* out, size_t elements, uint64_t seed);

/// Adds the number of 32-bit words that differ to the device's unsigned 64-bit `total`.
void count_differences(const void* a, const void* b, size_t words, void* total);

}  // namespace verbatim::bench
