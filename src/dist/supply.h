// K and V on their way: head by head from the shards to the ranks that compute with them, each in a
// slot of memory that the next takes when it is used.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "dist/steps.h"
#include "dist/strategy.h"

namespace verbatim::dist {

class Supply {
 public:
  /// By rank, the rows of K and V that its visits of a head read.
  using Seen = std::function<const std::vector<HeldRows>&(int32_t head)>;

  /// Ranks of `plan` have their homes and heads, and get their `kv`.
  Supply(DistPlan& plan, const Grid& grid, Steps& steps, Seen seen);

  /// All heads, as they come: those that ranks take up at the same time behind each other.
  const std::vector<int32_t>& sequence() const { return sequence_; }
  /// Brings a head to all ranks that have it, and what these take up next, unless they are there.
  void bring(int32_t head);
  /// A rank needs a head no longer.
  void release(int32_t rank, int32_t head);

 private:
  int32_t heads() const { return static_cast<int32_t>(plan_.whole.order_of_head.size()); }
  int32_t world() const { return static_cast<int32_t>(plan_.ranks.size()); }
  RankPlan& rank(int32_t r) { return plan_.ranks[r]; }
  const RankPlan& rank(int32_t r) const { return plan_.ranks[r]; }
  void lay_out();
  void find_sequence();
  /// The head that a rank takes up in a round; -1: none.
  int32_t head_at(int32_t r, int32_t round) const;
  void bring_round(int32_t round);
  void hold(int32_t r, int32_t head);
  void inside_groups(int32_t round);
  void from_group_to_group(int32_t round);
  Interval kv_head(int32_t head) const;

  DistPlan& plan_;
  const Grid& grid_;
  Steps& steps_;
  Seen seen_by_;
  std::vector<Hop> hops_;
  std::vector<HeldRows> group_kv_;  // by outer index
  int32_t rounds_ = 0;              // of a batch entry
  std::vector<int32_t> round_of_;   // by head: when the last rank has it
  std::vector<int32_t> sequence_;
  int32_t next_ = 0;                         // round
  std::vector<std::vector<int32_t>> slots_;  // by rank, the head in each; -1: free
  const std::vector<HeldRows>* seen_of_ = nullptr;
  std::vector<HeldRows> seen_;  // by hop of Route::needed: what heads seen so need
};

}  // namespace verbatim::dist
