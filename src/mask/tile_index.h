// Which tile of an axis holds a position.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace verbatim {

/// The tiles of an axis by position, in constant time.
class TileIndex {
 public:
  explicit TileIndex(std::span<const int64_t> edges) : edges_(edges) {
    const int64_t tiles = std::max<int64_t>(std::ssize(edges) - 1, 1);
    while ((tiles << shift_) < edges.back()) ++shift_;
    int32_t tile = 0;
    for (int64_t begin = 0; begin < edges.back(); begin += int64_t{1} << shift_) {
      while (edges[tile + 1] <= begin) ++tile;
      first_.push_back(tile);
    }
  }
  /// The tile that holds the position; past the end: their number.
  int32_t at(int64_t position) const {
    if (position >= edges_.back()) return static_cast<int32_t>(edges_.size()) - 1;
    int32_t tile = first_[position >> shift_];
    while (edges_[tile + 1] <= position) ++tile;
    return tile;
  }

 private:
  std::span<const int64_t> edges_;
  int shift_ = 0;
  std::vector<int32_t> first_;  // tile that holds each multiple of 2^shift_: as many as tiles
};

}  // namespace verbatim
