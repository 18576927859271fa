#include <fmt/format.h>

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

std::pair<int32_t, int32_t> seen_by(const TileMap& tiles, int32_t q_tile) {
  const auto row = tiles.row(q_tile);
  return row.empty() ? std::pair{0, 0} : std::pair{row.front().first, row.back().last};
}

const char* message_of(ListFault fault) {
  switch (fault) {
    case ListFault::behind_end:
      return "a block stands behind the end of its list";
    case ListFault::no_block:
      return "a list names a block that is not there";
    case ListFault::hidden:
      return "a list names a block of which its queries see no key";
    default:
      return "a list names a block twice";
  }
}

Error::Details details_of(const WrongEntry& wrong, const std::string& index, int32_t blocks) {
  const auto expected = [&]() -> std::string {
    switch (wrong.fault) {
      case ListFault::behind_end:
        return "-1 behind a -1";
      case ListFault::no_block:
        return fmt::format("0 to {}, or -1 behind the last", blocks - 1);
      case ListFault::hidden:
        if (wrong.seen_first == wrong.seen_last) return "none: its queries see no key";
        return fmt::format("{} to {}", wrong.seen_first, wrong.seen_last - 1);
      default:
        return "each block once";
    }
  };
  return {index,
          fmt::format("{}[{}, {}, {}, {}] = {}", index, wrong.b, wrong.kv_head, wrong.q_tile,
                      wrong.at, wrong.block),
          expected(), ""};
}

}  // namespace verbatim
