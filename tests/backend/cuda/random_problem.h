// Random problems for GPU tests, each a function of its number.
#pragma once

#include <string>

#include "backend/cuda/gpu_case.h"
#include "verbatim/mask.h"
#include "verbatim/schedule.h"

namespace verbatim::test {

/// A problem and how to run it: any mask, head dims, dtype, group, scale, softcap and dropout, and
/// any order that promises equal bits.
struct RandomProblem {
  Problem problem;
  Mask mask;
  std::string forward_order, backward_order, placement;
  TileShape forward_tile, backward_tile;
  int64_t gap;  // elements between rows; 0: dense

  std::string text() const;
};
RandomProblem random_problem(uint64_t number);

/// The plan of its backward, in the usual placement where its own needs more workers at once than
/// every GPU has.
SharedPlan backward_plan(const RandomProblem& r, const GpuCase& c,
                         const std::string& arithmetic = gpu_arithmetic());

}  // namespace verbatim::test
