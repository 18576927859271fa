// A sequence in which one process could make all visits of a backward.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dist/passes.h"
#include "plan/alike.h"

namespace verbatim::dist {

inline constexpr int32_t kAllOfRun = INT32_MAX;

/// Consecutive visits of a chain (a number into WholeChains): from visit `first` of run
/// `run_begin` to before visit `last` of run `run_end` - 1. A chain without visits has one walk
/// without runs.
struct Walk {
  int32_t chain = 0;
  int32_t run_begin = 0, run_end = 0;  // into HeadOrder::runs
  int32_t first = 0, last = kAllOfRun;
  int32_t alike = 1;  // chains, from this one on: AlikeChains
};

/// An order, and of a backward what every way of dealing it to ranks needs.
struct WholeOrder {
  /// Throws Error(invalid_plan) where waits go in a circle.
  explicit WholeOrder(std::shared_ptr<const HeadOrder> of);

  std::shared_ptr<const HeadOrder> order;
  WholeChains chains;
  ChainRows rows;  // by_chain()

  /// Calls f(Walk) for walks that hold every visit once, in a sequence in which each row's addends
  /// come in their order, alike ones at once. Found run by run where the tasks of the order count
  /// up as issued, else visit by visit. One walk ends each chain.
  template <class F>
  void for_each_walk(F&& f) const {
    for (const Walk& walk : walks_) f(walk);
    if (!counts_up_) return;
    for (const auto& [first, count] : issued_)
      if (!is_idle(order->chains[static_cast<size_t>(first)])) f(walk(first, count));
  }

 private:
  /// A piece without visits ends no chain: another piece's walk does.
  static bool is_idle(const Chain& chain) {
    return chain.continues && chain.run_begin == chain.run_end;
  }
  /// Of chains from `c` on of the order; one may be a piece.
  Walk walk(int32_t c, int32_t alike) const;

  bool counts_up_ = false;
  std::vector<AlikeChains> issued_;
  std::vector<int32_t> number_;  // of the whole chain, by chain, where some are cut
  std::vector<Walk> walks_;      // where tasks do not count up
};

}  // namespace verbatim::dist
