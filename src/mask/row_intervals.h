// Masks by what each row sees.
#pragma once

#include <cstdint>
#include <span>

#include "verbatim/mask.h"

namespace verbatim::masks {

/// Query q sees the keys [begins[i], ends[i]) for row_begin[q] <= i < row_begin[q + 1], which lie
/// apart and in ascending order.
struct RowIntervals {
  std::span<const int64_t> row_begin;  // [q_len + 1], offsets into the others
  std::span<const int32_t> begins, ends;
};
/// The mask that from_dense() makes of the same positions. Throws Error, which names the row.
Mask from_row_intervals(const RowIntervals& rows, int64_t kv_len);

}  // namespace verbatim::masks
