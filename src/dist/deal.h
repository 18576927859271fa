// One order, dealt: chains are cut where their visits change rooms, and what can run as one launch
// is put together. Dealt is to rooms (verbatim/dist.h): most ranks have one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
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
  int32_t chains = 0;          // of all
  int32_t begin = 0, end = 0;  // into Share::leaving
};

/// What one room can do at once: visits that wait for none of other rooms but those of the stages
/// before. In the backward, every chain goes on from where a share of a lower stage left it.
struct Share {
  int32_t stage = 0, room = 0;
  std::shared_ptr<const OrderPart> part;
  // Backward:
  std::vector<int32_t> convoys;  // of each stretch of the part
  std::vector<int32_t> leaving;  // those that go on, by where
  std::vector<Handing> handings;
  double longest = 0, work = 0;  // visits: about the longest chain's, and each of kWorkers' of all

  std::span<const int32_t> convoys_of(const Handing& handing) const {
    return std::span(leaving).subspan(handing.begin, handing.end - handing.begin);
  }
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
  std::vector<Span> spans;          // of one convoy after another: the first of each has offset 0
  std::vector<int32_t> first_span;  // by convoy
  std::vector<TileEnd> ends;        // ascending by stage

  std::span<const Span> spans_of(int32_t convoy) const {
    const auto next = static_cast<size_t>(convoy) + 1;
    const int32_t begin = first_span[static_cast<size_t>(convoy)];
    const auto end =
        next < first_span.size() ? first_span[next] : static_cast<int32_t>(spans.size());
    return std::span(spans).subspan(begin, end - begin);
  }

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
