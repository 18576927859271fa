// The lists of all ranks while they are written down, in one sequence in which each step comes
// after those it needs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "dist/deal.h"
#include "verbatim/dist.h"

namespace verbatim::dist {

/// Appends boxes of `operands` over rows and heads.
void append(std::vector<Box>& boxes, std::span<const Operand> operands, const HeldRows& rows,
            Interval heads);
void append(std::vector<Box>& boxes, std::vector<Box> more);

/// What ranks send each other, in rounds in each of which a rank sends to one other: else all would
/// send to the first at once. Each has `from` and `to`.
template <class Sent>
std::vector<Sent> in_rounds(std::vector<Sent> all, int32_t world) {
  std::ranges::stable_sort(
      all, {}, [world](const Sent& each) { return (each.to - each.from + world) % world; });
  return all;
}

/// What a span of a convoy carries, from its first block on.
void append(std::vector<CarriedSum>& sums, int32_t head, const Span& span, int32_t first);

class Steps {
 public:
  explicit Steps(DistPlan& plan) : plan_(plan) {}

  /// Where a step is written: behind all others, or by behind().
  enum class Place { here, behind };

  template <class T>  // a Step, or one of its kinds
  void add(int32_t rank, T step, Place place = Place::here) {
    if (place == Place::behind) {
      behind_.emplace_back(rank, std::move(step));
      return;
    }
    if (plan_.options.overlapped && needs_asked(rank, step)) take_asked(rank);
    steps_of(rank).emplace_back(std::move(step));
  }
  /// Moves boxes from rank to rank: on the same one a copy, else a message that take() receives.
  /// `room`: of what they are of queries in the work space. `place`: of the copy, or the send.
  void move(int32_t from, Space source, int32_t to, Space target, const Boxes& boxes,
            int32_t room = 0, Place place = Place::here);
  /// Sends sums, whose blocks the two ranks number in their own way. Until take() nothing may
  /// change the sender's blocks: small messages to one rank become one.
  void hand_on(int32_t from, CarriedSums sent, int32_t to, CarriedSums received);
  /// Ranks take what was sent to them: behind what they send meanwhile, so that no message waits
  /// for another that it needs nothing of. Overlapped, they expect it here, and take it in front of
  /// the next step that may need it.
  void take(Place place = Place::here);

  // Of overlapped plans:
  /// All expect what was sent to them, and take it by behind().
  void expect() { expect(nullptr); }
  /// Ranks with launches to come do so, but for sums that these go on from: `needed` has the blocks
  /// of such ranks. The rest is taken here.
  using Needed = std::map<int32_t, std::vector<bool>>;
  void expect(const Needed& needed) { expect(&needed); }
  /// Writes the steps that were put behind, such as a launch that was written since.
  void behind();
  /// Behind the last step.
  void end();

  /// How many a rank has, and how many messages there are.
  size_t count(int32_t rank) const { return plan_.ranks[static_cast<size_t>(rank)].steps.size(); }
  int64_t messages() const { return messages_; }
  /// Writes down section `as` of the plan once more, with heads and ranks whose numbers are so much
  /// greater. It has the messages [first, last).
  void repeat(int32_t as, int64_t first, int64_t last, int32_t heads, int32_t ranks);

 private:
  struct UnderWay {
    int32_t to;
    size_t step;  // that sends it
    Receive receive;
  };
  /// A message that is expected, and taken when a step needs it, or another its place.
  struct Asked {
    Receive receive;
    Interval place;  // none: it lands in its blocks
  };
  std::vector<Step>& steps_of(int32_t rank) { return plan_.ranks[static_cast<size_t>(rank)].steps; }
  void send(Send send, int32_t from, Receive receive, Place place = Place::here);
  void ask(int32_t rank, Receive receive);
  void take_next(int32_t rank);
  void take_asked(int32_t rank);
  /// Whether a step may need what its rank has asked for.
  bool needs_asked(int32_t, const Send& send) { return send.space == Space::work; }
  bool needs_asked(int32_t, const Copy& copy) { return copy.from == Space::work; }
  bool needs_asked(int32_t rank, const Hold& hold);
  bool needs_asked(int32_t, const Compute&) { return true; }
  bool needs_asked(int32_t, const Add&) { return true; }
  bool needs_asked(int32_t, const Expect&) { return false; }
  bool needs_asked(int32_t, const Receive&) { return false; }
  bool needs_asked(int32_t rank, const Step& step) {
    return std::visit([&](const auto& own) { return needs_asked(rank, own); }, step);
  }
  void expect(const Needed* needed);
  void expect(int32_t rank, const Receive& receive, Interval place);
  /// What an expected message takes of the landing memory.
  int64_t landing_bytes(const Receive& receive) const;

  DistPlan& plan_;
  std::vector<UnderWay> under_way_;
  struct Sums {
    size_t message = 0;  // in under_way_
    int64_t bytes = 0;
  };
  std::unordered_map<int64_t, Sums> last_sums_;   // the last message of sums, by from and to
  std::vector<std::pair<int32_t, Step>> behind_;  // by rank
  std::map<int32_t, int64_t> landed_;             // bytes that behind() takes, by rank
  std::map<int32_t, std::deque<Asked>> asked_;    // by rank
  int64_t messages_ = 0;
};

}  // namespace verbatim::dist
