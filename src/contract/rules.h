// The rules behind the order "auto". They fix bits: who changes one raises kContractVersion.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "contract/contract.h"

namespace verbatim::contract {

/// What the rules may know: one sequence's tiles and the size of its group. Nothing of the device,
/// and, but for `heads`, of other heads, of the batch or of what else is packed.
struct Shape {
  int64_t group = 1;
  int64_t rows = 0, q_tiles = 0;  // query positions and tiles
  std::vector<int64_t> columns;   // visits of each KV tile that has any
  int64_t visits = 0;             // of all, by one query head
  int64_t longest_column = 0, longest_row = 0;
  int64_t alike = 0;  // KV tiles whose last visits are of the query tile that most have there
  bool full = false;  // every query tile visits every KV tile
  bool gaps = false;  // TileMap::has_gaps()
  // All that runs together, in KV heads of this sequence; 0: not to be known (level invariant).
  double heads = 0;

  Shape(const TileMap& tiles, int32_t group);
  /// Whether at least half of the chains of a descending order start at one query tile, and so
  /// follow each other (causal masks, prefixes); those of global tokens start apart.
  bool starts_together() const { return 2 * alike >= static_cast<int64_t>(columns.size()); }
};

/// One rule for the backward's order. The first that applies decides.
struct OrderRule {
  const char* name;
  const char* when;  // in words, for docs/scheduling.md
  const char* why;
  bool (*applies)(const Shape& shape);
  std::string (*order)(const Shape& shape);
};
/// The last applies always.
std::span<const OrderRule> order_rules();

/// The order that `auto` stands for in a sequence. `visits`: of one query head of each group of the
/// whole problem, which levels below invariant may know; 0: unknown. `rules`: those of the
/// backward; a study may leave some out.
std::string auto_order(Pass pass, const TileMap& tiles, int32_t group, int64_t visits = 0,
                       std::span<const OrderRule> rules = order_rules());

/// The equal parts of a group, a divisor of it, whose chains are expected to end first: beside
/// `shape.heads`, or whatever the number of heads (docs/scheduling.md). `even`: as the suffix
/// "/even:N".
int64_t best_parts(const Shape& shape, bool even);

/// How many of a sequence's KV tiles rotate together in `shift`: all, up to half a wave, for other
/// kernels can have part of the device. More rotate in equal chunks: the largest, down to a quarter
/// of a wave, of which whole numbers fill 7/8 of one; half a wave where there are none.
int64_t rotating_tiles(int64_t kv_tiles);

/// The chains of a KV tile under "/even:N": as few as make none longer than those of the tile that
/// most rows see. That one has `most` visits and `parts` chains, this one `visits`.
int64_t even_parts(int64_t group, int64_t parts, int64_t visits, int64_t most);

}  // namespace verbatim::contract
