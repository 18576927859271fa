// The lists of all ranks while they are written down, in one sequence in which each step comes
// after those it needs.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "verbatim/dist.h"

namespace verbatim::dist {

/// Boxes of `operands` over rows and heads.
std::vector<Box> boxes_of(std::span<const Operand> operands, const HeldRows& rows, Interval heads);
void append(std::vector<Box>& boxes, std::vector<Box> more);

class Steps {
 public:
  explicit Steps(std::vector<RankPlan>& ranks) : ranks_(ranks) {}

  void add(int32_t rank, Step step) { steps_of(rank).push_back(std::move(step)); }
  /// Moves boxes from rank to rank: on the same one a copy, else a message that take() receives.
  void move(int32_t from, Space source, int32_t to, Space target, const Boxes& boxes);
  /// Sends sums, whose blocks the two ranks number in their own way.
  void hand_on(int32_t from, std::vector<CarriedSum> sent, int32_t to,
               std::vector<CarriedSum> received);
  /// Ranks take what was sent to them: behind what they send meanwhile, so that no message waits
  /// for another that it needs nothing of.
  void take();

 private:
  std::vector<Step>& steps_of(int32_t rank) { return ranks_[static_cast<size_t>(rank)].steps; }
  void send(Send send, int32_t from, Receive receive);

  std::vector<RankPlan>& ranks_;
  std::vector<std::pair<int32_t, Receive>> under_way_;  // by receiver
  int64_t messages_ = 0;
};

}  // namespace verbatim::dist
