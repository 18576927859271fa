// The pairs of one tile as bits, and the hulls that let products skip what is hidden.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/cpu/kernels.h"
#include "core/dropout.h"
#include "verbatim/mask.h"

namespace verbatim::cpu {

/// Which axis of the attention plane the rows of a tile run along: queries in the backward, keys in
/// the forward (whose score tile is transposed).
enum class TileRows { queries, keys };

/// Where a tile lies in the plane of its head.
struct TileRect {
  Interval q, k;
  bool operator==(const TileRect&) const = default;
};

/// Bits of the pairs of a tile, kLanes columns per word, row after row.
class TileBits {
 public:
  TileBits(int64_t max_rows, int64_t max_cols);

  const uint16_t* data() const { return bits_.data(); }
  int64_t strips() const { return strips_; }

 protected:
  void clear(int64_t rows, int64_t cols);
  void set(int64_t row, int64_t col) { bits_[row * strips_ + col / kLanes] |= 1u << col % kLanes; }
  void set(int64_t row, Extent cols);

  int64_t rows_ = 0, strips_ = 0;
  std::vector<uint16_t> bits_;
};

/// The visible pairs of a partial tile.
class TileMask : public TileBits {
 public:
  TileMask(int64_t max_rows, int64_t max_cols);
  /// The union of `slice_count` slices from map.slice_ids[slice_begin]. Asked again for what it
  /// holds, it keeps it: short heads under one mask have the same tile.
  void build(const TileMap& map, int32_t slice_begin, int32_t slice_count, const TileRect& rect,
             TileRows axis);

  /// Per kRowGroup rows: hull of their visible columns.
  const Extent* cols_of_rows() const { return cols_of_rows_.data(); }
  /// Per kRowGroup columns: hull of their visible rows.
  const Extent* rows_of_cols() const { return rows_of_cols_.data(); }

 private:
  struct Built {
    const TileMap* map = nullptr;
    int32_t slice_begin = 0, slice_count = 0;
    TileRect rect{};
    TileRows axis{};
    bool operator==(const Built&) const = default;
  };
  Built built_;
  std::vector<Extent> cols_of_rows_, rows_of_cols_;
};

/// The pairs of a tile, which lies in one sequence, that dropout keeps.
class KeepMask : public TileBits {
 public:
  using TileBits::TileBits;
  void build(const Dropout& dropout, const DropoutOrigin& origin, int64_t q_head,
             const TileRect& rect, TileRows axis);
};

}  // namespace verbatim::cpu
