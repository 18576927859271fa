#include <algorithm>

#include "backend/selected.h"

namespace verbatim {

std::span<const int32_t> SelectedBlocks::list(int64_t b, int64_t kv_head, int64_t q_tile) const {
  const std::span all(data + ((b * shape[1] + kv_head) * shape[2] + q_tile) * shape[3],
                      static_cast<size_t>(shape[3]));
  return all.first(std::ranges::find(all, kNoBlock) - all.begin());
}

const TileRun* find_run(std::span<const TileRun> row, int32_t tile) {
  const auto found = std::ranges::upper_bound(row, tile, {}, &TileRun::last);
  return found != row.end() && found->first <= tile ? &*found : nullptr;
}

}  // namespace verbatim
