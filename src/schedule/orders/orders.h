// The ways to order sums; one idea a file, one table (registry.cpp) of their names.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "contract/contract.h"
#include "verbatim/schedule.h"

namespace verbatim::order {

using Tiles = std::shared_ptr<const TileMap>;

/// How many chains share a KV tile of a query group. Each visits an equal number of its query heads
/// (to within one) in one chunk of rows; partial dK and dV are added chunk after chunk, part after
/// part. Larger parts come first, so that those that are issued longest first are issued in order.
struct Parts {
  int32_t count = 1;  // 0: one for each query head
  // KV tiles that fewer rows see have fewer: as few as make no chain longer than the longest of
  // the KV tile that most rows see.
  bool even = false;
  // Query positions, counted from the start of the sequence, that chains visit before others go on
  // with the next; 0: all.
  int32_t rows = 0;

  /// The chains of a KV tile that `visits` rows of a query head see, of all tiles at most `most`.
  int32_t of(int32_t group, int64_t visits, int64_t most) const;
};
inline constexpr Parts kWalked{1};  // one visits all: dK and dV never leave registers
inline constexpr Parts kEach{0};
/// The first query head of one of so many.
constexpr int32_t first_head(int32_t group, int32_t part, int32_t parts) {
  return (group * part + parts - 1) / parts;
}

using contract::kChunk;
using contract::kSplit;
using contract::kWave;

/// From the first query tile of a column to the last, or back.
enum class Rows { up, down };

/// One permutation of the KV tiles for every dQ row: tasks are issued and addends numbered in its
/// sequence. No task waits for a later one, so any number of workers can run it.
HeadOrder ascending(const Tiles& tiles, int32_t group, Parts parts);
HeadOrder descending(const Tiles& tiles, int32_t group, Parts parts);
HeadOrder right_to_left(const Tiles& tiles, int32_t group, Parts parts);
HeadOrder chunked_descending(const Tiles& tiles, int32_t group, Parts parts);

/// Sweeps rotated over the whole head (DASH figure 6), of a long one over chunks of
/// rotating_tiles(), or inside chunks of kChunk KV tiles; pairs of KV tiles (figure 7) of the head
/// or of a chunk. Tasks wait for later ones: as many workers must be resident as tasks rotate
/// together.
HeadOrder shift(const Tiles& tiles, int32_t group, Parts parts);
HeadOrder chunked_shift(const Tiles& tiles, int32_t group, Parts parts);
HeadOrder symmetric_shift(const Tiles& tiles, int32_t group, Parts parts);
HeadOrder chunked_symmetric_shift(const Tiles& tiles, int32_t group, Parts parts);

/// Tasks of KV tiles whose work is about equal, half a wave at most, and slots in each of which a
/// row is visited by one of them: for masks whose chains are of any length. Tasks wait for later
/// ones, as those that rotate. Chains that walk several query heads do so one KV tile of their task
/// after another, in phases.
HeadOrder matched(const Tiles& tiles, int32_t group, Parts parts);

/// One chain per query tile and query head; unless kWalked, rows are cut every kSplit KV tiles.
HeadOrder forward_ascending(const Tiles& tiles, int32_t group, Parts parts);
HeadOrder forward_descending(const Tiles& tiles, int32_t group, Parts parts);

/// The orders that `build` makes of the tiles of each sequence and of its padding, one after
/// another. So the order of a document's sums is the same alone, packed and padded, whatever
/// `build` does. The name is that of the parts, or "auto" where they differ.
HeadOrder per_sequence(const Tiles& tiles, const std::function<HeadOrder(const Tiles&)>& build);

/// Whether an entry of orders() takes one KV tile after another: each can have parts of its own,
/// and chunks of rows.
bool takes_columns(const OrderInfo& info);
/// The entry of orders() that `name` means, split or not; Error naming the nearest.
const OrderInfo& find(Pass pass, std::string_view name);
/// The order of the last heads of a plan that follows `name`; empty when all heads are alike.
std::string last_heads(std::string_view name);

}  // namespace verbatim::order
