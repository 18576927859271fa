// A plan as kernels see it: the host's arrays, copied unchanged to the device.
#pragma once

#include <cstdint>

#include "core/dropout.h"
#include "verbatim/piece.h"

namespace verbatim::cuda {

/// Device copies of one HeadOrder and its TileMap.
struct OrderView {
  const Run* runs;
  const Chain* chains;
  const Task* tasks;
  const int32_t* row_addends;  // backward: [q_tiles] addends of each dQ row; 0: dQ = 0
  const int64_t* q_edges;      // [q_tiles + 1]
  const int64_t* kv_edges;     // [kv_tiles + 1]
  // Rows of the tensors at which tiles begin: the edges, but of a piece of a plan where its memory
  // has the tile, -1 where it does not.
  const int64_t* q_rows;   // [q_tiles]
  const int64_t* kv_rows;  // [kv_tiles]
  const Carry* carries;    // of a piece's backward: [chains]; else null
  // Positions of a tile up to the last that the mask shows: what lies behind them, padding or
  // another document, may hold anything and enters no product.
  const int32_t* q_used;   // [q_tiles]
  const int32_t* kv_used;  // [kv_tiles]
  const int32_t* slice_ids;
  const Slice* slices;
  const DropoutOrigin* dropout_origins;  // [q_tiles]; sequences counted inside the head
  int32_t q_tiles;
  int32_t kv_tiles;
};

/// Device copy of a Plan; passed to kernels by value. A CTA takes a ticket u and does the tasks
/// placed[unit_begin[u]] ... placed[unit_begin[u + 1] - 1]; without unit_begin (a queue) placed[u].
struct PlanView {
  const OrderView* orders;
  const int32_t* order_of_head;   // [batch * kv_heads]
  const int64_t* first_sequence;  // [batch * kv_heads]: sequences of the batch entries before
  const PlacedTask* placed;       // in issue order
  const int32_t* unit_begin;      // [unit_count + 1], or null
  int32_t unit_count;
  int32_t group;  // query heads per KV head
  int32_t kv_heads;
  int32_t first_q_head;  // of the problem, for dropout: 0, but of a piece of a plan

  /// Where dropout counts from in query tile `q_tile` of `head`.
  VERBATIM_HD DropoutOrigin dropout_origin(int32_t head, int32_t q_tile) const {
    DropoutOrigin origin = orders[order_of_head[head]].dropout_origins[q_tile];
    origin.sequence += first_sequence[head];
    return origin;
  }
};

}  // namespace verbatim::cuda
