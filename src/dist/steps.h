// The lists of all ranks while they are written down, in one sequence in which each step comes
// after those it needs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "verbatim/dist.h"

namespace verbatim::dist {

/// Boxes of `operands` over rows and heads.
std::vector<Box> boxes_of(std::span<const Operand> operands, const HeldRows& rows, Interval heads);
void append(std::vector<Box>& boxes, std::vector<Box> more);

/// What ranks send each other, in rounds in each of which a rank sends to one other: else all would
/// send to the first at once. Each has `from` and `to`.
template <class Sent>
std::vector<Sent> in_rounds(std::vector<Sent> all, int32_t world) {
  std::ranges::stable_sort(
      all, {}, [world](const Sent& each) { return (each.to - each.from + world) % world; });
  return all;
}

class Steps {
 public:
  explicit Steps(DistPlan& plan) : plan_(plan) {}

  void add(int32_t rank, Step step) { steps_of(rank).push_back(std::move(step)); }
  /// Moves boxes from rank to rank: on the same one a copy, else a message that take() receives.
  /// `room`: of what they are of queries in the work space.
  void move(int32_t from, Space source, int32_t to, Space target, const Boxes& boxes,
            int32_t room = 0);
  /// Sends sums, whose blocks the two ranks number in their own way. Until take() nothing may
  /// change the sender's blocks: small messages to one rank become one.
  void hand_on(int32_t from, std::vector<CarriedSum> sent, int32_t to,
               std::vector<CarriedSum> received);
  /// Ranks take what was sent to them: behind what they send meanwhile, so that no message waits
  /// for another that it needs nothing of.
  void take();

  /// How many a rank has, and how many messages there are.
  size_t count(int32_t rank) const { return plan_.ranks[static_cast<size_t>(rank)].steps.size(); }
  int64_t messages() const { return messages_; }
  /// Writes down section `as` of the plan once more, with heads and ranks whose numbers are so much
  /// greater. `first`: its first message.
  void repeat(int32_t as, int64_t first, int32_t heads, int32_t ranks);

 private:
  std::vector<Step>& steps_of(int32_t rank) { return plan_.ranks[static_cast<size_t>(rank)].steps; }
  void send(Send send, int32_t from, Receive receive);

  DistPlan& plan_;
  struct UnderWay {
    int32_t to;
    size_t step;  // that sends it
    Receive receive;
  };
  std::vector<UnderWay> under_way_;
  struct Sums {
    size_t message = 0;  // in under_way_
    int64_t bytes = 0;
  };
  std::map<std::pair<int32_t, int32_t>, Sums> last_sums_;  // from, to: the last message of sums
  int64_t messages_ = 0;
};

}  // namespace verbatim::dist
