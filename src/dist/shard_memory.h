// The shard of one rank, copied from and to tensors of the whole problem.
#pragma once

#include <cstddef>
#include <span>

#include "dist/executor.h"
#include "verbatim/dist.h"

namespace verbatim::dist {

/// The operands of a pass as the caller has them.
LocalTensors whole_tensors(const ForwardTensors& tensors);
LocalTensors whole_tensors(const BackwardTensors& tensors);

class ShardMemory {
 public:
  ShardMemory(const DistPlan& plan, int32_t rank, const Backend& backend, const RunOptions& run);
  /// Memory of the same backend for another rank.
  ShardMemory of(int32_t rank) const { return {plan_, rank, backend_, run_}; }
  const LocalTensors& tensors() const { return memory_.tensors(); }
  /// Copies the inputs of the rank's positions.
  void take(const LocalTensors& whole) { exchange(whole, false); }
  /// Copies its outputs back.
  void give(const LocalTensors& whole) { exchange(whole, true); }
  /// What give() copies: a run of bytes for each output, in the sequence of operands.
  std::vector<std::span<std::byte>> outputs();

 private:
  void exchange(const LocalTensors& whole, bool back);

  const DistPlan& plan_;
  const Backend& backend_;
  const RunOptions& run_;
  const RankPlan& own_;
  LocalMemory memory_;
};

}  // namespace verbatim::dist
