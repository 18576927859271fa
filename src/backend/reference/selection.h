// Which rows of the results a check looks at.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "verbatim/mask.h"
#include "verbatim/problem.h"

namespace verbatim {

/// Row [b, l, h] of a (batch, length, heads, dim) tensor.
struct RowIndex {
  int64_t b, l, h;
  auto operator<=>(const RowIndex&) const = default;
};

struct Selection {
  std::vector<RowIndex> queries;  // rows of O, LSE and dQ; h is a query head
  std::vector<RowIndex> keys;     // rows of dK and dV; h is a KV head

  static Selection all(const Problem& problem);
  /// At most 48 query rows of any head and at most 32 keys of one KV head. A row of dK needs every
  /// query that attends to the key, and all their keys: keys are taken while those rows hold at
  /// most `max_positions` visible positions, so long causal problems sample late keys only.
  static Selection sample(const Problem& problem, const Mask& mask, uint64_t seed,
                          int64_t max_positions = int64_t{1} << 24);
};

}  // namespace verbatim
