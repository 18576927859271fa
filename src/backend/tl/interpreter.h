// Runs a program tile by tile along a plan: a chain is one run through its statements, the loop
// the chain's visits. Sums take turns as in every executor on the host (backend/executor.h).
#pragma once

#include "backend/backend.h"
#include "tl/kernel.h"

namespace verbatim::tl {

/// Throws Error(unsupported) naming what `kernel` is not made for.
void check_problem(const Kernel& kernel, const Problem& problem);
void check_mask(const Kernel& kernel, const Mask& mask);
void check_tile(const Kernel& kernel, TileShape tile);

void run_forward(const Kernel& kernel, const Plan& plan, const ForwardTensors& tensors,
                 const RunOptions& run);
void run_backward(const Kernel& kernel, const Plan& plan, const BackwardTensors& tensors,
                  const RunOptions& run);
/// Bytes that a run with all cores allocates at most.
int64_t workspace_bytes(const Kernel& kernel, const Plan& plan);

}  // namespace verbatim::tl
