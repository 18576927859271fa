// One order, dealt: chains are cut where their visits change rooms, and what can run as one launch
// is put together. Dealt is to rooms (verbatim/dist.h): most ranks have one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "dist/route.h"
#include "verbatim/dist.h"

namespace verbatim::dist {

/// Workers that a rank is taken to have: no bit depends on it.
inline constexpr int32_t kWorkers = 128;

/// Chains behind each other that go the same way, so that their sums travel together.
struct Convoy {
  int32_t chain = 0, count = 0;  // into WholeChains
};

/// KV tiles of a convoy: its chains from `offset` on keep those from `kv_tile` on, up or down.
struct Span {
  int32_t offset, kv_tile, count;
  int32_t step;  // 1 or -1

  int32_t lowest() const { return step > 0 ? kv_tile : kv_tile - count + 1; }
};

/// Convoys that go on from a share to another room.
struct Handing {
  int32_t to = 0;
  int32_t chains = 0;  // of all
  std::vector<int32_t> convoys;
  std::vector<Span> tiles;  // of one convoy after another: the first of each has offset 0
};

/// What one room can do at once: visits that wait for none of other rooms but those of the stages
/// before. In the backward, every chain goes on from where a share of a lower stage left it.
struct Share {
  int32_t stage = 0, room = 0;
  std::shared_ptr<const OrderPart> part;
  std::vector<int32_t> convoys;  // backward: of each stretch of the part
  std::vector<Handing> handings;
  // Backward, in visits: about those of the longest chain, and what each of kWorkers has of all.
  double longest = 0, work = 0;
};

/// Where the sums of KV tiles behind each other end: with their last visit, or, of several parts
/// that are not all visited in one room, where the tiles are at home.
struct TileEnd {
  /// A chain of a convoy.
  struct Part {
    int32_t convoy = 0, offset = 0;
  };
  int32_t kv_tile = 0, count = 0;
  int32_t step = 1;             // from a part to that of the next tile, in its convoy: 1 or -1
  int32_t stage = 0, room = 0;  // when all parts are complete
  std::vector<Part> parts;      // of the first tile, by addend
};

struct Deal {
  std::vector<Share> shares;               // ascending by stage, then room
  std::vector<Visited> q_tiles, kv_tiles;  // what rooms need; they may overlap
  // Of the backward:
  int32_t starts = 1;  // stages in which chains start
  std::vector<Convoy> convoys;
  std::vector<TileEnd> ends;  // ascending by stage

  /// Whether no launch goes on from what another room did.
  bool is_at_once() const { return shares.empty() || shares.back().stage == 0; }
  /// Whether sums go to other rooms.
  bool hands_on() const {
    return std::ranges::any_of(shares, [](const Share& s) { return !s.handings.empty(); });
  }
};

/// `together`: as of find_routes().
Deal deal(const WholeOrder& whole, const Owners& owners, int32_t together);

/// The rooms that own something, ascending; `owners` then names them by their places here. So heads
/// that different rooms own alike are dealt once.
std::vector<int32_t> number_rooms(Owners& owners);
/// What was dealt to rooms 0, 1, ..., dealt to `rooms`, which ascend. Parts are shared.
std::shared_ptr<const Deal> deal_to(std::shared_ptr<const Deal> deal,
                                    const std::vector<int32_t>& rooms);

}  // namespace verbatim::dist
