// Orders given by a virtual clock: every visit has a time, and a row adds in the order of time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "schedule/orders/orders.h"

namespace verbatim::order {

/// Query tiles [first, last), walked up or back; empty tiles are passed over.
struct Sweep {
  int32_t first, last;
  Rows rows = Rows::up;
};

/// How a chain goes through the rows of its KV tile.
struct Walk {
  int32_t kv_tile;
  int32_t phase;  // all visits of a phase come before those of the next
  std::vector<Sweep> sweeps;
};

/// A visit of query head 0.
struct TimedVisit {
  int32_t q_tile;
  int32_t slice_begin = 0, slice_count = 0;
  int32_t time = 0, addend = 0;
};

/// The visits of one chain by one query head.
struct Trail {
  int32_t kv_tile, phase;  // as those of Walk
  std::vector<TimedVisit> visits;
};

/// Tasks of so many trails, one behind the other. A row adds by phase, time and KV tile; times do
/// not fall along a task whose phases do not, and grow from chain to chain. Finds the addends.
/// Visits of a run are less than `apart` in time.
HeadOrder in_time(const Tiles& tiles, int32_t group, Parts parts, std::vector<Trail> trails,
                  std::span<const int32_t> chains_of_task, int32_t apart = INT32_MAX);

/// One task per entry, its walks back to back. Inside a phase, the time of a visit is the number of
/// visits by rows of the core (TileMap::core_q_tiles()) that its task made before; ties go to the
/// smaller KV tile. Times do not fall along a task when its phases do not, so the waits cannot form
/// a cycle; but tasks may wait for later ones. Costs visits, in time and (for the time of planning)
/// memory.
HeadOrder timed(const Tiles& tiles, int32_t group, Parts parts,
                const std::vector<std::vector<Walk>>& tasks);

}  // namespace verbatim::order
