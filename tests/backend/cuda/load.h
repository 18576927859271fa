// Other work on the GPU while a test runs.
#pragma once

namespace verbatim::test {

/// Starts `ctas` CTAs on `stream` that each hold a multiprocessor's shared memory for a while that
/// depends on `seed`: launches beside them get fewer multiprocessors, at other times.
void start_load(int ctas, unsigned seed, void* stream);

}  // namespace verbatim::test
