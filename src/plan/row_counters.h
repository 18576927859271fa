// Counts how many addends each dQ row has received, for sweeps that visit whole ranges of rows.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace verbatim {

/// Counters of the rows [begin, end): value, then `step` more after every `every` rows.
struct Stair {
  int32_t begin, end;
  int32_t value, step, every;

  int32_t size() const { return end - begin; }
  int32_t at(int32_t row) const { return value + (row - begin) / every * step; }
  bool operator==(const Stair&) const = default;
};

/// One counter per row, kept as stairs: on regular masks a few records stand for all rows, so a
/// column of any height is numbered in constant time. On irregular ones, whose stairs are short, a
/// visit costs no more than its own rows: each stair lies at the row where it begins, and a bitmap
/// says where one does.
class RowCounters {
 public:
  explicit RowCounters(int32_t rows);

  /// Appends the stairs that cover [first, last) to `out`, then adds `count` to each counter there.
  void take(int32_t first, int32_t last, std::vector<Stair>& out, int32_t count = 1);
  /// All counters, [rows].
  std::vector<int32_t> values() const;

 private:
  Stair& at(int32_t begin) { return stairs_[begin]; }
  void put(const Stair& stair);
  void remove(int32_t begin);
  /// Where the stair that holds `row` begins: on irregular masks mostly near.
  int32_t begin_of(int32_t row) const {
    const uint64_t begins = begins_[row / 64] << (63 - row % 64);
    return begins != 0 ? row - std::countl_zero(begins) : begin_before(row);
  }
  /// As begin_of() where that is in another word.
  int32_t begin_before(int32_t row) const;
  bool take_plateau(int32_t first, int32_t last, std::vector<Stair>& out, int32_t count);
  void split(int32_t row);
  void join(int32_t first, int32_t last);

  int32_t rows_;
  std::vector<Stair> stairs_;             // [rows], of which those count that begin at their row
  std::vector<uint64_t> begins_, words_;  // a bit for each of these; for each word with such a bit
};

}  // namespace verbatim
