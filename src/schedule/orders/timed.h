// Orders given by a virtual clock: every visit has a time, and a row adds in the order of time.
#pragma once

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

/// One task per entry, its walks back to back. Inside a phase, the time of a visit is the number of
/// visits by rows of the core (TileMap::core_q_tiles()) that its task made before; ties go to the
/// smaller KV tile. Times do not fall along a task when its phases do not, so the waits cannot form
/// a cycle; but tasks may wait for later ones. Costs visits, in time and (for the time of planning)
/// memory.
HeadOrder timed(const Tiles& tiles, int32_t group, Parts parts,
                const std::vector<std::vector<Walk>>& tasks);

}  // namespace verbatim::order
