// A head of a batch entry, dealt, with the rows that follow.
#pragma once

#include <memory>
#include <vector>

#include "dist/deal.h"
#include "dist/rooms.h"

namespace verbatim::dist {

struct Dealt {
  std::shared_ptr<const Deal> like;  // what was dealt to rooms 0, 1, ...
  std::vector<int32_t> rooms;        // which they are
  std::shared_ptr<const Deal> deal;  // to these
  std::vector<HeldRows> q;           // visited, by room
  std::vector<HeldRows> kv, ended;   // visited, and of dK and dV that end there, by rank
  std::vector<bool> visits;          // by rank: whether it has any; they need not read K and V

  /// `like`: of batch entry `batch`. `all`: rooms of all ranks.
  Dealt(std::shared_ptr<const Deal> like, std::vector<int32_t> rooms, int64_t batch,
        const TileMap& tiles, const Rooms& all, int32_t world);
};

}  // namespace verbatim::dist
