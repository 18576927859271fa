// Where the rows of a head's tiles are.
#pragma once

#include <cstdint>
#include <vector>

#include "verbatim/dist.h"

namespace verbatim::dist {

/// The query heads of a head's group.
inline Interval group_heads(const Plan& whole, int32_t head) {
  const int64_t kv_head = head % whole.problem.kv_heads, group = whole.problem.group();
  return {kv_head * group, (kv_head + 1) * group};
}
/// Rows of tiles [first, last), which begin at `edges`.
inline RowRange rows_of(const Plan& whole, const std::vector<int64_t>& edges, int32_t head,
                        int64_t first, int64_t last) {
  return {head / whole.problem.kv_heads, {edges[first], edges[last]}};
}
/// Those of query head `q_head` of the group.
inline Box q_box(const Plan& whole, Operand operand, int32_t head, int32_t q_head, int64_t first,
                 int64_t last) {
  const int64_t h = group_heads(whole, head).begin + q_head;
  return {operand, rows_of(whole, whole.order(head).tiles->q_edges, head, first, last), {h, h + 1}};
}
/// Those of the KV head.
inline Box kv_box(const Plan& whole, Operand operand, int32_t head, int64_t first, int64_t last) {
  const int64_t h = head % whole.problem.kv_heads;
  return {
      operand, rows_of(whole, whole.order(head).tiles->kv_edges, head, first, last), {h, h + 1}};
}

}  // namespace verbatim::dist
