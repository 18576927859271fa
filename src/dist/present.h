// Which rows of a tensor are there, in the memory of a rank.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "verbatim/dist.h"

namespace verbatim::dist {

/// Positions of one axis, ascending, by batch entry.
using Cuts = std::vector<std::vector<int64_t>>;
/// Where tiles, shards and work spaces begin and end, of one axis.
Cuts q_cuts(const DistPlan& plan);
Cuts kv_cuts(const DistPlan& plan);

/// Rows of one axis that a memory holds, in pieces between cuts.
class RowPieces {
 public:
  RowPieces(const HeldRows& rows, const Cuts& cuts);
  size_t size() const { return size_; }
  /// The pieces [begin, end) that a range consists of; none if not all of it is held, or it begins
  /// or ends inside one.
  std::optional<Interval> find(const RowRange& range) {
    if (range != asked_) {  // operands ask for the same rows, one after another
      asked_ = range;
      found_ = search(range);
    }
    return found_;
  }

 private:
  std::optional<Interval> search(const RowRange& range) const;

  struct Entry {
    std::vector<int64_t> begins;     // of its pieces
    std::vector<int64_t> before{0};  // rows, by piece, then all
    int64_t first = 0;               // piece
  };
  std::vector<Entry> entries_;  // of the batch
  size_t size_ = 0;
  RowRange asked_{-1, {0, 0}};
  std::optional<Interval> found_;
};

/// Whether each piece of each head is there.
class Present {
 public:
  Present() = default;
  Present(size_t pieces, int64_t heads)
      : pieces_(static_cast<int64_t>(pieces)), there_(pieces * static_cast<size_t>(heads)) {}
  bool all(Interval pieces, int64_t head) const {
    return std::find(at(pieces.begin, head), at(pieces.end, head), 0) == at(pieces.end, head);
  }
  bool any(Interval pieces, int64_t head) const {
    return std::find(at(pieces.begin, head), at(pieces.end, head), 1) != at(pieces.end, head);
  }
  void set(Interval pieces, int64_t head, bool there) {
    std::fill(there_.begin() + pieces_ * head + pieces.begin,
              there_.begin() + pieces_ * head + pieces.end, there);
  }

 private:
  std::vector<uint8_t>::const_iterator at(int64_t piece, int64_t head) const {
    return there_.begin() + pieces_ * head + piece;
  }
  int64_t pieces_ = 0;
  std::vector<uint8_t> there_;  // [heads, pieces]
};

}  // namespace verbatim::dist
