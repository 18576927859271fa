// What of the tensors is there in the memory of one rank, its shard and its work space.
#pragma once

#include <array>
#include <initializer_list>
#include <vector>

#include "dist/present.h"

namespace verbatim::dist {

/// Rows of dQ to which no key is visible, by head; none in a forward. Their zeros are there before
/// anything runs.
std::vector<HeldRows> rows_without_keys(const DistPlan& plan);

class Holdings {
 public:
  /// Nothing is there yet. `q_cuts` and `kv_cuts` are those of all ranks, as long as this is there.
  Holdings(const DistPlan& plan, const RankPlan& own, const Cuts& q_cuts, const Cuts& kv_cuts);

  /// Each returns what is wrong with the rows of a box, of queries those in a room; null: nothing
  /// is. `pieces`: those of the box.
  const char* read(Space space, const Box& box, Interval pieces, int32_t room);
  const char* write(Space space, const Box& box, Interval pieces, int32_t room);
  /// Whether the slot can be that of the head, whose K and V are not there then.
  bool hold(const Hold& hold);
  /// The slot of a head; -1: none.
  int32_t slot_of(int32_t head) const;

  const HeldRows& rows_at_home(Operand operand) const;
  Interval heads_at_home(Operand operand) const;

 private:
  /// Rows of some operands, and what of them is there.
  struct Memory {
    HeldPieces pieces;
    Interval heads{};
    std::array<Present, kOperands> there;

    Memory(HeldPieces of, Interval heads, std::initializer_list<Operand> operands);
    Present& of(Operand operand) { return there[static_cast<size_t>(operand)]; }
  };
  Memory& memory(Space space, Operand operand, int32_t room);
  bool has_slot(const Box& box) const;
  template <class F>
  const char* each(Space space, const Box& box, Interval pieces, int32_t room, F&& f);

  const Problem& problem_;
  const RankPlan& own_;
  const Cuts& kv_cuts_;
  Memory home_q_, home_kv_, kv_, ended_;
  std::vector<Memory> rooms_;
  std::vector<int32_t> slots_;  // the head in each; -1: none
};

}  // namespace verbatim::dist
