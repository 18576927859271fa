// The steps of a backward from the first launch to the last sum: who starts when, in which blocks
// sums lie and to whom they go on.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "dist/blocks.h"
#include "dist/dealt.h"
#include "dist/launches.h"
#include "dist/rooms.h"
#include "dist/starts.h"
#include "dist/steps.h"

namespace verbatim::dist {

class Relay {
 public:
  using DealtHeads = std::vector<std::shared_ptr<const Dealt>>;

  /// All are read as long as this is there.
  Relay(DistPlan& plan, const Rooms& rooms, Steps& steps, Launches& launches,
        const DealtHeads& dealt, const Starts& starts);

  /// Heads follow each other: while sums of some are on their way, others fill the time. What a
  /// head does alone is a section, and those dealt alike repeat it. Overlapped, its sums come
  /// beside launches of the next: none is alone.
  void run();

 private:
  static constexpr int32_t kInPlace = -2;

  /// Blocks behind each other.
  struct Row {
    int32_t block = 0, count = 0;
  };
  struct Leaving {
    int32_t head, from, to, chains;
    std::span<const int32_t> convoys;
  };
  using Ends = std::vector<std::pair<int32_t, const TileEnd*>>;  // of heads
  /// What comes next of a head.
  struct Progress {
    size_t share = 0, end = 0;
  };
  /// What a head did alone.
  struct Known {
    int32_t head, section;
    int64_t first, last;          // its messages [first, last)
    std::vector<int32_t> blocks;  // that it took, by its rooms
  };

  int32_t heads() const { return static_cast<int32_t>(dealt_.size()); }
  int32_t world() const { return static_cast<int32_t>(plan_.ranks.size()); }
  const Dealt& dealt(int32_t head) const { return *dealt_[static_cast<size_t>(head)]; }
  const Deal& deal_of(int32_t head) const { return *dealt(head).deal; }
  bool overlapped() const { return plan_.options.overlapped; }
  Blocks& blocks(int32_t r) { return blocks_[static_cast<size_t>(r)]; }
  /// The block of the first sum of a convoy; -1: it has not started, kInPlace: it has none.
  int32_t& block(int32_t head, int32_t number) {
    return at_[static_cast<size_t>(head)][static_cast<size_t>(number)];
  }

  /// Whether no rank has to do with two of heads [begin, end), nor with several rooms of one.
  bool are_apart(int32_t begin, int32_t end) const;
  /// All of a head of which no sum waits for another rank, while no other head has any.
  void run_alone(int32_t head);
  /// Whether it does what one did that was dealt alike.
  bool repeat(int32_t head);
  /// What heads [begin, end) do at a time.
  void advance(int32_t begin, int32_t end, int32_t time);
  void carry_on(int32_t head, const Share& share);
  /// Whether the chains of a convoy that starts in a share are whole there and all there is of
  /// their tiles: then they end in the results.
  bool ends_in_place(int32_t head, const Share& share, size_t stretch);
  /// Sums that were sent: the launches to come go on from some, which are taken; others come beside
  /// them.
  void expect_sums();
  /// Sends sums to where their chains go on, or end. What is sent leaves its blocks before any
  /// comes, so that a message finds blocks behind each other.
  void hand_on(std::vector<Leaving> all);
  /// Calls f(first block, how many) for its convoys.
  template <class F>
  void for_convoys(const Leaving& own, F&& f) {
    for (const int32_t number : own.convoys)
      f(block(own.head, number), deal_of(own.head).convoys[static_cast<size_t>(number)].count);
  }
  CarriedSums sums_of(const Leaving& own);
  /// Those that ended.
  void add_ended();
  void add_tiles(int32_t head, const TileEnd& end);
  /// The blocks of sums that have been added, neighbours together.
  void give_back();

  DistPlan& plan_;
  const Rooms& rooms_;
  Steps& steps_;
  Launches& launches_;
  const DealtHeads& dealt_;
  const Starts& starts_;
  int32_t last_ = 0;                                   // when the last launches are
  std::vector<Progress> progress_;                     // by head
  std::vector<std::vector<int32_t>> at_;               // first block, by head and convoy
  std::vector<Blocks> blocks_;                         // by rank
  std::vector<std::vector<Row>> added_;                // by rank: not given back yet
  Ends ended_;                                         // not added yet
  std::vector<bool> ends_in_place_;                    // by rank: dK and dV lie as K and V
  std::map<const Deal*, std::vector<int32_t>> alone_;  // by convoy that is all there is of its
                                                       // tiles the room where they end; else -1
  std::vector<Known> known_;
};

}  // namespace verbatim::dist
