// A piece of a plan as a plan of the memory that it runs in, for executors whose kernels find rows
// by tile: they run it as any plan, and look up where a tile lies.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/backend.h"

namespace verbatim {

/// The tiles of one axis of one head: those that a memory holds, each gap between them one tile.
struct LocalTiles {
  std::vector<int64_t> edges;  // their positions, which stay the problem's
  std::vector<int64_t> rows;   // of each the first row in memory; -1: not held
  std::vector<int32_t> of;     // of each tile of the plan, held ones only, its number here; else -1

  LocalTiles(const std::vector<int64_t>& edges, int64_t batch, const HeldRows& held);
  /// Puts empty tiles before and behind, so that the first has number `first` and all are `count`.
  void number(int32_t first, int32_t count);
};

/// One head of a LocalPiece.
struct LocalHead {
  // As LocalTiles has them; in the backward -1 of query tiles without a visit, too.
  std::vector<int64_t> q_rows, kv_rows;
  std::vector<Carry> carries;  // as the piece has them
};

/// The piece alone: the KV heads from its first to its last, those between that are not of it with
/// nothing to do, with the query heads of their groups that the memory has. Each head has an order.
/// The problem's lengths are the rows of the memory; tile edges, slices and addends stay what they
/// were, so that masks and dropout need no translation. Query tiles are numbered through the batch,
/// alike in all pieces of a head. In the backward a chain with a carried sum `continues`, none that
/// leaves one is the last of its tile, and rows take turns whatever the level.
struct LocalPiece {
  Plan plan;
  std::vector<LocalHead> heads;  // of the plan
  // Backward, [q_heads][q_tiles]: that a row begins with; -1: it has no visit.
  std::vector<int32_t> first_addends;
  std::vector<int64_t> first_sequence;    // of each head (DropoutOrigins)
  int64_t q_head = 0;                     // of the problem, the first
  int64_t q_head_at = 0, kv_head_at = 0;  // in memory, the first
  double shown_by_blocks = 0;             // TileMap::shown_by_blocks(), mean of heads

  /// `q_heads`: query heads of the memory. Of a piece of several heads it has all of each group.
  LocalPiece(const Plan& whole, const Piece& piece, const PieceMemory& memory, int64_t q_heads);

  /// The heads of the piece in tensors of the memory.
  TensorView q_side(TensorView tensor) const;
  TensorView kv_side(TensorView tensor) const;
  RowView q_side(RowView rows) const;

 private:
  /// `tiles_before`, `all_tiles`: of queries in the memory (local_q_tiles()).
  void add_head(const Plan& whole, const HeadPiece& own, const PieceMemory& memory,
                int32_t tiles_before, int32_t all_tiles);
  void add_idle_head();
};

/// Query tiles of a memory in the batch entries before `batch`: of each as many as that head of it
/// has that has most.
int32_t local_q_tiles(const Plan& whole, const HeldRows& q_rows, int64_t batch);

}  // namespace verbatim
