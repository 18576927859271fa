// What the blocks of a rank hold, to the proof: sums of dK and dV, as far as they have come.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "dist/facts.h"

namespace verbatim::dist {

/// Sums of chains of a row, which need not be alike, in blocks behind each other.
struct Sums : ChainRow {
  int32_t head = 0;
  std::optional<Position> next;  // the next visit of each; none: they are complete

  /// Of them [from, from + count).
  Sums part(int32_t from, int32_t count) const {
    Sums own = *this;
    own.chain += from;
    own.count = count;
    own.tile += from * step;
    return own;
  }
  /// Whether these are of `head` and of the tiles from `tile` on in steps of `step`.
  bool are_of(int32_t head, int32_t tile, int32_t step) const {
    return this->head == head && this->tile == tile && (count == 1 || this->step == step);
  }
};

class HeldSums {
 public:
  explicit HeldSums(int32_t blocks) : row_of_(static_cast<size_t>(blocks), kNone) {}
  /// Whether there are blocks [first, first + count).
  bool has(int32_t first, int32_t count) const {
    return first >= 0 && count >= 0 && count <= std::ssize(row_of_) - first;
  }
  // Of blocks that are there.
  /// The first block of [first, first + count) that holds a sum; -1: none.
  int32_t find_held(int32_t first, int32_t count) const;
  /// Free blocks wait for sums: until then they are held, and nothing can be taken. Or no more.
  void expect(int32_t first, int32_t count) {
    std::fill_n(row_of_.begin() + first, count, kExpected);
    held_ += count;
  }
  void release(int32_t first, int32_t count) {
    std::fill_n(row_of_.begin() + first, count, kNone);
    held_ -= count;
  }
  /// From `first` on, which is free.
  void put(int32_t first, const Sums& sums);
  /// Frees what lies in `first`, and in as many of the `count` blocks from there on as hold what
  /// was put with it. None: nothing.
  Sums take(int32_t first, int32_t count);
  /// How many blocks hold one, or wait for it.
  int32_t held() const { return held_; }

 private:
  static constexpr int32_t kNone = -1, kExpected = -2;
  /// What was put together.
  struct Row {
    int32_t block = 0, left = 0;
    Sums sums;
  };

  std::vector<int32_t> row_of_;  // by block
  std::vector<Row> rows_;
  std::vector<int32_t> unused_;  // rows without sums
  int32_t held_ = 0;
};

}  // namespace verbatim::dist
