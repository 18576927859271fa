#include "backend/cpu/tile_mask.h"

#include <algorithm>

namespace verbatim::cpu {
namespace {

void widen(Extent& hull, int32_t begin, int32_t end) {
  if (hull.begin >= hull.end) {
    hull = {begin, end};
  } else {
    hull = {std::min(hull.begin, begin), std::max(hull.end, end)};
  }
}

/// Columns of row `x` that `slice` shows, on the axis that the columns run along.
Interval shown(const Slice& slice, int64_t x, TileRows axis) {
  if (axis == TileRows::queries) {
    if (x < slice.q_begin || x >= slice.q_end) return {0, 0};
    return {std::max(slice.k_begin, x + slice.lo), std::min(slice.k_end, x + slice.hi + 1)};
  }
  if (x < slice.k_begin || x >= slice.k_end) return {0, 0};
  return {std::max(slice.q_begin, x - slice.hi), std::min(slice.q_end, x - slice.lo + 1)};
}

}  // namespace

TileBits::TileBits(int64_t max_rows, int64_t max_cols)
    : bits_(round_up(max_rows, kRowGroup) * round_up(max_cols, kLanes) / kLanes) {}

void TileBits::clear(int64_t rows, int64_t cols) {
  rows_ = rows;
  strips_ = round_up(cols, kLanes) / kLanes;
  std::fill_n(bits_.begin(), rows_ * strips_, uint16_t{0});
}

void TileBits::set(int64_t row, Extent cols) {
  for (int32_t first = cols.begin; first < cols.end;) {
    const int32_t strip = first / kLanes, end = std::min(cols.end, (strip + 1) * kLanes);
    const uint32_t bits = (1u << (end - first)) - 1;
    bits_[row * strips_ + strip] |= static_cast<uint16_t>(bits << first % kLanes);
    first = end;
  }
}

TileMask::TileMask(int64_t max_rows, int64_t max_cols)
    : TileBits(max_rows, max_cols),
      cols_of_rows_(round_up(max_rows, kRowGroup) / kRowGroup),
      rows_of_cols_(round_up(max_cols, kLanes) / kRowGroup) {}

void TileMask::build(const TileMap& map, int32_t slice_begin, int32_t slice_count,
                     const TileRect& rect, TileRows axis) {
  const Built wanted{&map, slice_begin, slice_count, rect, axis};
  if (built_ == wanted) return;
  built_ = wanted;
  const Interval rows = axis == TileRows::queries ? rect.q : rect.k;
  const Interval cols = axis == TileRows::queries ? rect.k : rect.q;
  clear(rows.end - rows.begin, cols.end - cols.begin);
  std::fill(cols_of_rows_.begin(), cols_of_rows_.end(), Extent{0, 0});
  std::fill(rows_of_cols_.begin(), rows_of_cols_.end(), Extent{0, 0});
  for (int32_t row = 0; row < rows_; ++row) {
    for (int32_t s = slice_begin; s < slice_begin + slice_count; ++s) {
      const Interval seen = shown(map.slices()[map.slice_ids[s]], rows.begin + row, axis);
      const int64_t begin = std::max(seen.begin, cols.begin), end = std::min(seen.end, cols.end);
      if (begin >= end) continue;
      const Extent extent{static_cast<int32_t>(begin - cols.begin),
                          static_cast<int32_t>(end - cols.begin)};
      set(row, extent);
      widen(cols_of_rows_[row / kRowGroup], extent.begin, extent.end);
      for (int32_t g = extent.begin / kRowGroup; g * kRowGroup < extent.end; ++g)
        widen(rows_of_cols_[g], row, row + 1);
    }
  }
}

void KeepMask::build(const Dropout& dropout, const DropoutOrigin& origin, int64_t q_head,
                     const TileRect& rect, TileRows axis) {
  const bool query_rows = axis == TileRows::queries;
  const int64_t queries = rect.q.end - rect.q.begin, keys = rect.k.end - rect.k.begin;
  clear(query_rows ? queries : keys, query_rows ? keys : queries);
  const auto sequence = static_cast<uint32_t>(origin.sequence);
  const auto head = static_cast<uint32_t>(q_head);
  for (int64_t q = 0; q < queries; ++q) {
    const auto query = static_cast<uint32_t>(rect.q.begin - origin.q + q);
    uint32_t keep = 0;
    for (int64_t k = 0; k < keys; ++k) {
      const int64_t key = rect.k.begin - origin.k + k;
      if (k == 0 || key % 8 == 0)
        keep = dropout.keep8(sequence, head, query, static_cast<uint32_t>(key / 8));
      if (keep >> key % 8 & 1) query_rows ? set(q, k) : set(k, q);
    }
  }
}

}  // namespace verbatim::cpu
