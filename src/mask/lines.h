// Masks row by row: from slices to the visible keys of every row, and back.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "verbatim/mask.h"

namespace verbatim {

/// Sorts disjoint intervals and joins those that touch.
void merge(std::vector<Interval>& intervals);

/// Calls visit(q, keys) for every row q of [0, rows) in order, with its merged visible keys. Takes
/// O(slices log slices + rows * slices of a row). Transposed slices give columns.
void for_each_row(std::span<const Slice> slices, int64_t rows,
                  const std::function<void(int64_t, std::span<const Interval>)>& visit);

/// Finds few slices for given rows: intervals of neighbouring rows join while both ends stay or
/// move as a band moves them.
class SliceBuilder {
 public:
  /// Visible keys of the next row, merged.
  void add_row(std::span<const Interval> keys);
  /// The slices of all rows, sorted by first row and key.
  std::vector<Slice> finish();

 private:
  /// A slice that may go on: the interval of its latest row, and which of its ends have turned.
  struct Open {
    Slice slice;
    Interval last;
    bool begin_moves = false;  // a begin stays for some rows, then follows the band's `lo`
    bool end_stays = false;    // an end follows the band's `hi` for some rows, then stays
  };
  static bool extend(Open& open, Interval keys);

  int64_t row_ = 0;
  std::vector<Open> open_;  // ascending in keys
  std::vector<Slice> done_;
};

}  // namespace verbatim
