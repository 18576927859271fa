// Which rows of a tensor are there, in the memory of a rank.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "verbatim/dist.h"

namespace verbatim::dist {

/// Where tiles, shards and work spaces begin and end on one axis. What lies between two is a piece;
/// those of all batch entries are numbered together.
class Cuts {
 public:
  Cuts(const DistPlan& plan, std::vector<int64_t> TileMap::*edges,
       const std::vector<const HeldRows*>& held);
  /// The pieces [begin, end) that a range consists of; none if it begins or ends inside one.
  Interval find(const RowRange& range) const;

 private:
  struct Entry {
    std::vector<int64_t> at;  // ascending
    int64_t first = 0;        // piece
    // Of each 2^shift positions, and of what is behind them: the first in `at` that is not before.
    std::vector<size_t> near;
    int32_t shift = 0;

    void find_near();
    /// Its place in `at`; at.size(): it is not there.
    size_t place(int64_t position) const;
  };
  std::vector<Entry> entries_;  // of the batch
};

/// Those of both axes, all ranks'.
class BoxCuts {
 public:
  explicit BoxCuts(const DistPlan& plan);
  const Cuts q, kv;

  /// The pieces of a box.
  Interval find(const Box& box) const;
  /// By box, until the next are asked for. All hops of what goes round share their boxes, which are
  /// looked up once.
  std::span<const Interval> find(const Boxes& boxes);

 private:
  std::unordered_map<const Box*, size_t> known_;  // into pieces_, by Boxes
  std::vector<Interval> pieces_;
};

/// Pieces that a memory holds.
class HeldPieces {
 public:
  HeldPieces(const HeldRows& rows, const Cuts& cuts);
  size_t size() const { return static_cast<size_t>(size_); }
  /// Where these lie in the memory; none if not all, or none at all, do.
  std::optional<Interval> find(Interval pieces) const {
    const auto after = std::ranges::upper_bound(stretches_, pieces.begin, {}, &Stretch::begin);
    if (after == stretches_.begin()) return std::nullopt;
    const Stretch& held = *std::prev(after);
    if (pieces.begin >= pieces.end || pieces.end > held.end) return std::nullopt;
    const int64_t moved = held.at - held.begin;
    return Interval{pieces.begin + moved, pieces.end + moved};
  }

 private:
  struct Stretch {
    int64_t begin, end;  // pieces
    int64_t at;          // where the first lies
  };
  std::vector<Stretch> stretches_;
  int64_t size_ = 0;
};

/// Whether each piece of each head is there: a bit each, for all ranks hold all pieces of a ring.
class Present {
 public:
  Present() = default;
  Present(size_t pieces, int64_t heads)
      : words_(static_cast<int64_t>(pieces + 63) / 64),
        there_(static_cast<size_t>(words_ * heads)) {}
  bool all(Interval pieces, int64_t head) const {
    return for_words(there_, pieces, head,
                     [](uint64_t word, uint64_t own) { return (word & own) == own; });
  }
  bool any(Interval pieces, int64_t head) const {
    return !for_words(there_, pieces, head,
                      [](uint64_t word, uint64_t own) { return (word & own) == 0; });
  }
  void set(Interval pieces, int64_t head, bool there) {
    for_words(there_, pieces, head, [there](uint64_t& word, uint64_t own) {
      word = there ? word | own : word & ~own;
      return true;
    });
  }

 private:
  /// Calls f(word, its bits of these pieces) until it returns false; whether it never does.
  template <class Words, class F>
  bool for_words(Words& words, Interval pieces, int64_t head, F&& f) const {
    for (int64_t at = pieces.begin, next = 0; at < pieces.end; at = next) {
      next = std::min(pieces.end, (at / 64 + 1) * 64);
      const uint64_t own = ~uint64_t{0} >> (64 - (next - at)) << at % 64;
      if (!f(words[static_cast<size_t>(words_ * head + at / 64)], own)) return false;
    }
    return true;
  }

  int64_t words_ = 0;            // of a head
  std::vector<uint64_t> there_;  // [heads, words]
};

}  // namespace verbatim::dist
