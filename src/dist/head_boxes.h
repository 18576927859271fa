// Boxes of the tiles of a head.
#pragma once

#include <cstdint>
#include <vector>

#include "verbatim/dist.h"

namespace verbatim::dist {

/// Query heads of the group of a KV head, which is one of a batch entry.
inline Interval group_heads(const Plan& whole, int32_t head) {
  const int64_t kv_head = head % whole.problem.kv_heads, group = whole.problem.group();
  return {kv_head * group, (kv_head + 1) * group};
}

inline RowRange rows_of_tiles(const Plan& whole, int32_t head, const std::vector<int64_t>& edges,
                              Interval tiles) {
  return {head / whole.problem.kv_heads, {edges[tiles.begin], edges[tiles.end]}};
}

/// Of query head `q_head` of its group.
inline Box q_box(const Plan& whole, Operand operand, int32_t head, int32_t q_head, Interval tiles) {
  const int64_t h = group_heads(whole, head).begin + q_head;
  return {operand, rows_of_tiles(whole, head, whole.order(head).tiles->q_edges, tiles), {h, h + 1}};
}

inline Box kv_box(const Plan& whole, Operand operand, int32_t head, Interval tiles) {
  const int64_t h = head % whole.problem.kv_heads;
  return {
      operand, rows_of_tiles(whole, head, whole.order(head).tiles->kv_edges, tiles), {h, h + 1}};
}

}  // namespace verbatim::dist
