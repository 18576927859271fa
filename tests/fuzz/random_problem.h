// One random problem: sizes, dtype, scalars, mask, layout of every tensor, plans and threads.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "support/guarded_tensor.h"
#include "verbatim/mask.h"
#include "verbatim/problem.h"
#include "verbatim/run.h"

namespace verbatim::test {

struct RandomProblem {
  Problem problem;
  Mask mask;
  TileShape forward_tile, backward_tile;
  std::string forward_order, backward_order;
  std::string forward_placement, backward_placement;
  int threads = 1, workers = 1;
  uint64_t fill_seed = 0;
  // A NaN in one row of one input; the others must not notice unless they attend to it.
  std::optional<std::string> poisoned;  // "q", "k", "v" or "dout"
  std::array<int64_t, 4> poison_at{};

  GuardedTensor q, k, v, dout, o, lse, dq, dk, dv;

  ForwardTensors forward() const;
  BackwardTensors backward() const;
  /// Every byte of o, lse, dq, dk and dv 0xff again.
  void poison_outputs();
  /// SHA-256 of o, lse, dq, dk, dv.
  std::vector<std::string> hashes() const;
  bool guards_intact() const;

  /// Everything but the layout, in one line.
  std::string text() const;
  /// The same problem for the same (seed, number), on every machine.
  static RandomProblem make(uint64_t seed, uint64_t number);
};

}  // namespace verbatim::test
