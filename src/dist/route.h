// Where the chains of a backward go: from room to room, and when.
#pragma once

#include <cstdint>
#include <vector>

#include "dist/sequence.h"

namespace verbatim::dist {

/// Tiles from `first` on, up to the next strip, belong to a room.
struct Strip {
  int32_t first = 0, room = 0;
  auto operator<=>(const Strip&) const = default;
};

/// Who visits what of one head.
struct Owners {
  std::vector<std::vector<Strip>> rows;  // query tiles, by query head of the group
  std::vector<Strip> tiles;              // KV tiles, as far as nothing visits them
  auto operator<=>(const Owners&) const = default;
};
int32_t room_of(const std::vector<Strip>& strips, int32_t tile);

/// Visits of a chain in one room, from `begin` to the next link. A stage is one more than that of
/// the last visit in another room that the chain comes from, and at least that of the addend before
/// in any row: visits of one room and stage can be made at once.
struct Link {
  int32_t stage = 0, room = 0;
  Place begin;
  bool operator==(const Link&) const = default;
};

/// Tiles that are visited in a room.
struct Visited {
  int32_t room, first, last;  // tiles [first, last)
};

/// Chains behind each other whose links are the same list.
struct Fellows {
  int32_t chain = 0, count = 0;  // into WholeChains
  int32_t list = 0;
};

struct Routes {
  std::vector<std::vector<Link>> lists;
  std::vector<Fellows> fellows;  // by chain: each chain once
  std::vector<Visited> q_tiles;
  int32_t starts = 1;  // stages in which chains start
};
/// Of `together` chains that are issued after one another the first stage is the same, of the next
/// ones a stage later: so the first go on to other rooms meanwhile. Throws Error(invalid_plan)
/// where not each chain ends once.
Routes find_routes(const WholeOrder& whole, const Owners& owners, int32_t together);

}  // namespace verbatim::dist
