// Parts of a plan that run by themselves, in memory that holds a part of the tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "verbatim/plan.h"

namespace verbatim {

/// Some rows of one batch entry.
struct RowRange {
  int64_t batch;
  Interval rows;
  bool operator==(const RowRange&) const = default;
};

/// The rows of one axis, of all batch entries, that a memory holds: range behind range, without the
/// rows between them.
class HeldRows {
 public:
  HeldRows() = default;
  /// In any sequence; they may overlap.
  explicit HeldRows(std::vector<RowRange> ranges);

  /// Disjoint, apart from each other, ascending.
  std::span<const RowRange> ranges() const { return ranges_; }
  int64_t size() const { return begin_.empty() ? 0 : begin_.back(); }
  bool holds(int64_t batch, Interval rows) const;
  /// Where a position lies that is held.
  int64_t at(int64_t batch, int64_t position) const;
  HeldRows intersect(const HeldRows& other) const;
  bool operator==(const HeldRows&) const = default;

 private:
  void append(const RowRange& range);                  // behind all others and apart from them
  size_t find(int64_t batch, int64_t position) const;  // the last range that begins at or before it

  std::vector<RowRange> ranges_;
  std::vector<int64_t> begin_;  // of each range in memory, then all rows; empty where none is held
};

/// Blocks (PieceMemory) that f32 dK and dV of a chain come from and go to, one sum each between two
/// pieces. -1: it starts from zero; both: the chain, all there is of its tile, ends in the results.
struct Carry {
  int32_t in = -1, out = -1;
  bool operator==(const Carry&) const = default;
};

/// Visits of one head. Tiles, positions and addends are those of the whole plan. A row of dQ goes
/// on from the sum of the addends before those in here. dK and dV of a chain go on from a block and
/// end in one, neither scaled nor rounded, even where they are complete, or as Carry says. Chains
/// of the forward are whole.
struct HeadPiece {
  int32_t head = 0;  // b * kv_heads + kv_head
  std::shared_ptr<const HeadOrder> order;
  std::vector<Carry> carries;  // backward: of each chain
  bool operator==(const HeadPiece&) const = default;
};

/// Visits that run as one launch: of one head, or of several of one batch entry, ascending, with
/// all query heads of their groups. Heads wait for nothing of each other.
struct Piece {
  std::vector<HeadPiece> heads;
  std::vector<PlacedTask> tasks;  // all, in the sequence in which free workers take them
  bool operator==(const Piece&) const = default;
};

/// The parts of dK and dV of one KV tile, complete and in the sequence of their addends, with which
/// the sums of the tile end: added, scaled, rounded.
struct TileSums {
  int32_t head = 0, kv_tile = 0;
  std::vector<int32_t> blocks;
  bool operator==(const TileSums&) const = default;
};

/// `whole` with the visits of `piece` alone, for executors: other heads have nothing to do.
Plan plan_of(const Plan& whole, const Piece& piece);

}  // namespace verbatim
