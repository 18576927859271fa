// The two passes as virtual workers, and the small things they share.
#pragma once

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "backend/sums.h"

namespace verbatim::cpu {

/// A piece of a plan and the memory that it runs in.
struct PieceCall {
  const Piece& piece;
  const PieceMemory& memory;
};

/// Without `piece` the plan is whole; else it is plan_of() that piece.
void run_forward(const Plan& plan, const ForwardTensors& tensors, const RunOptions& run,
                 const KernelTable& kernels, const PieceCall* piece = nullptr);
void run_backward(const Plan& plan, const BackwardTensors& tensors, const RunOptions& run,
                  const KernelTable& kernels, const PieceCall* piece = nullptr);
void add_tile_sums(const Plan& plan, const TileSums& sums, const BackwardTensors& tensors,
                   const PieceMemory& memory, const KernelTable& kernels);
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

/// A row of a tensor.
struct Place {
  int64_t b, l, h;
};

/// Where tensors hold the row of a batch entry, position and head of the problem: there, or where
/// the memory of a piece has it. Rows of one tile lie behind each other.
class Rows {
 public:
  explicit Rows(const PieceCall* piece) : memory_(piece ? &piece->memory : nullptr) {}

  Place q(int64_t b, int64_t l, int64_t h) const {
    if (!memory_) return {b, l, h};
    return {0, memory_->q_rows.at(b, l), h - memory_->first_q_head};
  }
  Place kv(int64_t b, int64_t l, int64_t h) const {
    if (!memory_) return {b, l, h};
    return {0, memory_->kv_rows.at(b, l), h - memory_->first_kv_head};
  }

 private:
  const PieceMemory* memory_;
};

inline void* row_address(const TensorView& t, Place p) {
  return static_cast<char*>(t.data) + t.offset(p.b, p.l, p.h) * size_of(t.dtype);
}

inline float* row_address(const RowView& t, Place p) { return t.row(p.b, p.h) + p.l; }

/// The row at `p` and those behind it as a destination.
inline RowsOut rows_out(const TensorView& t, Place p) {
  return {row_address(t, p), t.dtype, t.stride[1]};
}

}  // namespace verbatim::cpu
