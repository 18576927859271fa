// The tiles of masks that are rows of small rectangles, as block-sparse ones are: they cost less
// tile by tile than slice by slice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "verbatim/mask.h"

namespace verbatim {

/// Whether the slices come in rows, top to bottom and left to right: these are disjoint, whatever
/// bands cut them.
bool in_rows(std::span<const Slice> slices);

/// Whether they are rectangles in rows that touch few tiles each.
bool is_of_small_blocks(std::span<const Slice> slices, TileShape shape);

/// TileMap::rows of such slices. Lists that are no neighbours go to the end of `slice_ids`.
void list_rows(std::span<const Slice> slices, std::span<const int64_t> q_edges,
               std::span<const int64_t> kv_edges, std::vector<int32_t>& slice_ids,
               std::vector<int32_t>& begin, std::vector<TileRun>& rows);

/// TileMap::columns from the rows.
void list_columns(std::span<const int32_t> row_begin, std::span<const TileRun> rows,
                  std::span<const int32_t> slice_ids, size_t kv_tiles, std::vector<int32_t>& begin,
                  std::vector<TileRun>& columns);

}  // namespace verbatim
