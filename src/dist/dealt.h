// A head of a batch entry, dealt, with the rows that follow.
#pragma once

#include <memory>
#include <vector>

#include "dist/deal.h"
#include "dist/rooms.h"

namespace verbatim::dist {

struct Dealt {
  std::shared_ptr<const Deal> deal;
  std::vector<HeldRows> q;          // visited, by room
  std::vector<HeldRows> kv, ended;  // visited, and of dK and dV that end there, by rank
  std::vector<bool> visits;         // by rank: whether it has any; they need not read K and V

  /// `deal`: of batch entry `batch`, to all rooms.
  Dealt(std::shared_ptr<const Deal> deal, int64_t batch, const TileMap& tiles, const Rooms& rooms,
        int32_t world);
};

}  // namespace verbatim::dist
