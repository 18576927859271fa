// A plan as kernels see it: the host's arrays, copied unchanged to the device.
#pragma once

#include <cstdint>

#include "verbatim/plan.h"

namespace verbatim::cuda {

/// Device copies of one HeadOrder and its TileMap.
struct OrderView {
  const Run* runs;
  const Chain* chains;
  const Task* tasks;
  const int32_t* row_addends;  // backward: [q_tiles] addends of each dQ row; 0: dQ = 0
  const int64_t* q_edges;      // [q_tiles + 1]
  const int64_t* kv_edges;     // [kv_tiles + 1]
  const int32_t* slice_ids;
  const Slice* slices;
  int32_t q_tiles;
  int32_t kv_tiles;
};

/// Device copy of a Plan; passed to kernels by value. A CTA takes a ticket u and does the tasks
/// placed[unit_begin[u]] ... placed[unit_begin[u + 1] - 1]; without unit_begin (a queue) placed[u].
struct PlanView {
  const OrderView* orders;
  const int32_t* order_of_head;  // [batch * kv_heads]
  const PlacedTask* placed;      // in issue order
  const int32_t* unit_begin;     // [unit_count + 1], or null
  int32_t unit_count;
  int32_t group;  // query heads per KV head
  int32_t kv_heads;
};

}  // namespace verbatim::cuda
