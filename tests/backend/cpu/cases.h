// The tensors of one problem, filled by position, and both passes over them.
#pragma once

#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "backend/reference/compare.h"
#include "support/guarded_tensor.h"

namespace verbatim::test {

struct Case {
  Problem problem;
  Mask mask;
  GuardedTensor q, k, v, dout, o, lse, dq, dk, dv;  // outputs hold NaN until run()

  /// Rows of every tensor are `gap` elements apart. Q and K are uniform in +-amplitude.
  Case(const Problem& problem, Mask mask, uint64_t seed = 1, int64_t gap = 0, double amplitude = 1);

  ForwardTensors forward() const;
  BackwardTensors backward() const;
  /// Runs both plans on poisoned outputs.
  void run(const Plan& forward_plan, const Plan& backward_plan, int threads = 2,
           const cpu::KernelTable& kernels = cpu::kernels());
  /// SHA-256 of o, lse, dq, dk, dv.
  std::vector<std::string> hashes() const;
  /// Against the reference, every row.
  Check check() const;
  bool guards_intact() const;
  std::string describe() const;
};

/// A mask of each of the 14 patterns, of 200 positions.
std::vector<Mask> every_mask(int64_t kv_heads);

}  // namespace verbatim::test
