// The two passes as virtual workers, and the small things they share.
#pragma once

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "backend/sums.h"

namespace verbatim::cpu {

void run_forward(const Plan& plan, const ForwardTensors& tensors, const RunOptions& run,
                 const KernelTable& kernels);
void run_backward(const Plan& plan, const BackwardTensors& tensors, const RunOptions& run,
                  const KernelTable& kernels);
/// Bytes that a run with all cores allocates: partial sums, turns, and the tiles of its workers.
int64_t forward_workspace_bytes(const Plan& plan);
int64_t backward_workspace_bytes(const Plan& plan);

/// thread_count(), but not more than the work pays for: calling another thread takes microseconds.
int worthwhile_threads(const Plan& plan, const RunOptions& run);

inline ScoreScalars score_scalars(const Problem& problem) {
  return {static_cast<float>(problem.softmax_scale()), static_cast<float>(problem.softcap),
          problem.softcap == 0 ? 0.0f : static_cast<float>(1 / problem.softcap),
          Dropout::make(problem.dropout, problem.seed).scale};
}

/// Rows l, l + 1, ... of head h as a destination.
inline RowsOut rows_out(const TensorView& t, int64_t b, int64_t l, int64_t h) {
  return {row_address(t, b, l, h), t.dtype, t.stride[1]};
}

}  // namespace verbatim::cpu
