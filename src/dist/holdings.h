// What of the tensors is there in the memory of one rank, its shard and its work space.
#pragma once

#include <array>
#include <vector>

#include "dist/present.h"

namespace verbatim::dist {

class Holdings {
 public:
  /// Nothing is there yet. `q_cuts` and `kv_cuts` are those of all ranks.
  Holdings(const DistPlan& plan, const RankPlan& own, const Cuts& q_cuts, const Cuts& kv_cuts);

  /// Each returns what is wrong with these rows; null: nothing is.
  const char* read(Space space, const Box& box);
  const char* write(Space space, const Box& box);
  /// Whether the slot can be that of the head, whose K and V are not there then.
  bool hold(const Hold& hold);
  /// The slot of a head; -1: none.
  int32_t slot_of(int32_t head) const;

  Interval heads_in(Space space, Operand operand) const;

 private:
  /// A space: rows of the operands of q's axis, of k and v, of dk and dv, and what of them is
  /// there.
  struct Rows {
    RowPieces q, kv, sums;
    std::vector<Present> there;  // by operand

    const RowPieces& pieces(Operand operand) const;
  };
  Rows& rows_in(Space space) { return rows_[space == Space::home ? 0 : 1]; }
  bool has_slot(const Box& box) const;
  template <class F>
  const char* each(Space space, const Box& box, F&& f);

  const Problem& problem_;
  const RankPlan& own_;
  std::array<Rows, 2> rows_;    // home, work
  std::vector<int32_t> slots_;  // the head in each; -1: none
};

}  // namespace verbatim::dist
