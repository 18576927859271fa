// Whose the visits are: rooms of ranks, by the heads and rows that a sharding gives them.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "dist/route.h"
#include "dist/strategy.h"
#include "verbatim/dist.h"

namespace verbatim::dist {

/// Rooms of all ranks in one row: first that of each rank for what it holds, then those for what it
/// visits besides.
class Rooms {
 public:
  Rooms(const Problem& problem, const Grid& grid, const Sharding& sharding);

  const std::vector<int32_t>& ranks() const { return ranks_; }  // by room
  int32_t count() const { return static_cast<int32_t>(ranks_.size()); }
  int32_t rank_of(int32_t room) const { return ranks_[static_cast<size_t>(room)]; }
  /// In RankPlan::rooms.
  int32_t number_of(int32_t room) const { return numbers_[static_cast<size_t>(room)]; }
  /// Query heads of a room; KV heads that those of a rank's first see.
  Interval heads(int32_t room) const { return heads_[static_cast<size_t>(room)]; }
  Interval kv_heads(int32_t rank) const;
  /// Who visits what of a head.
  Owners owners(const HeadOrder& order, int32_t head) const;
  /// The ranks that hold some of these query rows, or keys, in their shards.
  std::set<int32_t> holders(const HeldRows& rows) const { return holders(homes_q_, rows); }
  std::set<int32_t> kv_holders(const HeldRows& rows) const { return holders(homes_kv_, rows); }

 private:
  /// Where rows of a rank begin, by batch entry.
  using Starts = std::vector<std::vector<std::pair<int64_t, int32_t>>>;
  static Starts starts(const std::vector<HeldRows>& held, int64_t batch);
  static std::set<int32_t> holders(const Starts& homes, const HeldRows& rows);
  int32_t owner(int32_t home, int64_t q_head) const;
  /// Throws Error where they are not of this problem and world, or not apart from each other.
  void check(std::span<const MovedHeads> moved) const;
  void make_room(const MovedHeads& moved);

  Problem problem_;
  Grid grid_;
  Starts homes_q_, homes_kv_;
  std::vector<MovedHeads> moved_;  // to rooms
  std::vector<int32_t> ranks_, numbers_;
  std::vector<Interval> heads_;
  std::vector<std::vector<RowRange>> rows_;  // that moved, by room
  std::vector<int64_t> used_;                // rows times heads, by room
};

}  // namespace verbatim::dist
