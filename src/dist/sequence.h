// A sequence in which one process could make all visits of a backward.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dist/passes.h"

namespace verbatim::dist {

/// Consecutive visits of a chain (a number into whole_chains()): from visit `first` of run
/// `run_begin` to before visit `last` of run `run_end` - 1. A chain without visits has one walk
/// without runs.
struct Walk {
  int32_t chain = 0;
  int32_t run_begin = 0, run_end = 0;  // into HeadOrder::runs
  int32_t first = 0, last = 0;
};

/// An order, and of a backward what every way of dealing it to ranks needs.
struct WholeOrder {
  /// Throws Error(invalid_plan) where waits go in a circle.
  explicit WholeOrder(std::shared_ptr<const HeadOrder> of);

  std::shared_ptr<const HeadOrder> order;
  std::vector<WholeChain> chains;
  /// They hold every visit once, in a sequence in which each row's addends come in their order.
  /// Found run by run where the tasks of the order count up as issued, else visit by visit.
  std::vector<Walk> walks;
};

}  // namespace verbatim::dist
