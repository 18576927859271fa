// Which rank holds which positions before and after a pass.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "dist/route.h"
#include "verbatim/piece.h"

namespace verbatim::dist {

/// The rank that holds a position.
class Homes {
 public:
  Homes(const std::vector<HeldRows>& ranks, int64_t batch) : of_entry_(static_cast<size_t>(batch)) {
    for (size_t r = 0; r < ranks.size(); ++r)
      for (const RowRange& range : ranks[r].ranges())
        of_entry_[range.batch].emplace_back(range.rows.begin, static_cast<int32_t>(r));
    for (auto& ranges : of_entry_) std::ranges::sort(ranges);
  }

  /// The ranks that hold the first positions of tiles.
  std::vector<Strip> strips(int64_t batch, const std::vector<int64_t>& edges) const {
    std::vector<Strip> strips;
    for (const auto& [position, rank] : of_entry_[batch]) {
      const auto first =
          static_cast<int32_t>(std::ranges::lower_bound(edges, position) - edges.begin());
      if (!strips.empty() && strips.back().first == first) strips.pop_back();
      strips.push_back({first, rank});
    }
    return strips;
  }

 private:
  std::vector<std::vector<std::pair<int64_t, int32_t>>> of_entry_;  // first position and rank
};

}  // namespace verbatim::dist
