// The benchmark's own kernels, all on the default stream.
#pragma once

#include <cstdint>

#include "verbatim/tensor.h"

namespace verbatim::bench {

/// N(0, 1) from a counter (SplitMix64, Box-Muller), rounded to `dtype`.
void fill_normal(void* out, Dtype dtype, int64_t elements, uint64_t seed);

/// Adds the number of 32-bit words that differ to the device's `total`.
void count_differences(const void* a, const void* b, int64_t words, unsigned long long* total);

/// Cycles that one multiprocessor's clock makes while the device's nanosecond timer goes on by
/// about 100 us: out[0] cycles, out[1] nanoseconds.
void read_clock(long long* out);

}  // namespace verbatim::bench
