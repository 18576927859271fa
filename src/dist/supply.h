// K and V on their way: head by head from the shards to the ranks that compute with them, each in a
// slot of memory that the next takes when it is used.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "dist/dealt.h"
#include "dist/steps.h"
#include "dist/strategy.h"

namespace verbatim::dist {

class Supply {
 public:
  using DealtHead = std::function<const Dealt&(int32_t head)>;

  static constexpr int32_t kAll = INT32_MAX;  // heads, of all batch entries
  /// Ranks of `plan` have their homes and heads, and get their `kv`. In a turn they take up
  /// `together` heads of a batch entry, whose slots lie behind each other.
  Supply(DistPlan& plan, const Grid& grid, Steps& steps, DealtHead dealt, int32_t together);

  /// The next turn, that before being over: brings its heads to all ranks that have them, unless
  /// they are on their way. False: there is none.
  bool next();
  /// Sends heads of the turn after this one as far as nothing that comes is sent on, and has them
  /// expected: they come beside the launches of this turn. The rest is put behind these. In turn
  /// they would come no sooner, and the host would ask for them before the first launch.
  void expect_next();
  /// Heads of this turn that a rank has, ascending.
  std::vector<int32_t> heads_of(int32_t r) const;

 private:
  int32_t heads() const { return static_cast<int32_t>(plan_.whole.order_of_head.size()); }
  int32_t world() const { return static_cast<int32_t>(plan_.ranks.size()); }
  RankPlan& rank(int32_t r) { return plan_.ranks[r]; }
  const RankPlan& rank(int32_t r) const { return plan_.ranks[r]; }
  void lay_out();
  /// Where K and V go only to those that need them, from the first KV head that a rank visits to
  /// the last; else all that its query heads see.
  void find_heads();
  /// The head that a rank takes up in a round; -1: none.
  int32_t head_at(int32_t r, int32_t round) const;
  /// Rounds of a turn.
  Interval rounds_of(int32_t turn) const;
  std::vector<int32_t> heads_at(int32_t r, Interval rounds) const;
  int32_t rounds_of_message() const;
  /// `place`: of what needs the slots.
  void bring(Interval rounds, Steps::Place place);
  void hold(int32_t r, int32_t head, int32_t slot, Steps::Place place);
  // Of heads of one batch entry.
  /// From the shards to those that need them.
  void straight(Interval rounds, Steps::Place place);
  void inside_groups(Interval rounds, Steps::Place place);
  void from_group_to_group(Interval rounds, Steps::Place place);
  /// From the shard: a message is sent here.
  void move_first(int32_t from, int32_t to, const Boxes& boxes, Steps::Place place);
  /// What was sent so is taken, or expected where that is put behind.
  void take_first(Steps::Place place);
  /// [from, to]: what a rank needs of another's shard.
  const std::vector<HeldRows>& needed(int32_t head);
  Interval kv_head(int32_t head) const;

  DistPlan& plan_;
  const Grid& grid_;
  Steps& steps_;
  DealtHead dealt_;
  std::vector<Hop> hops_;
  std::vector<HeldRows> group_kv_;            // by outer index
  std::vector<std::vector<Interval>> heads_;  // by rank and batch entry: KV heads
  int32_t together_;
  int32_t rounds_ = 1;  // of a batch entry: in each a rank takes up at most one head
  int32_t turn_ = -1, brought_ = -1;
  // By what is seen, and batch entry.
  std::map<std::pair<const std::vector<HeldRows>*, int64_t>, std::vector<HeldRows>> needed_;
};

}  // namespace verbatim::dist
