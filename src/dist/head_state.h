// What a head has had done, to the proof.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "dist/passes.h"

namespace verbatim::dist {

/// On whatever rank.
struct HeadState {
  WholeChains chains;
  std::vector<uint8_t> started;   // by chain
  size_t left;                    // chains that have not
  std::vector<uint8_t> ended;     // by KV tile
  std::vector<int32_t> row_next;  // next addend of each dQ row, [group, q_tiles]
  std::vector<std::pair<int32_t, int32_t>> row_memory;  // the rank and room that it is in

  HeadState(const HeadOrder& order, const WholeChains& own)
      : chains(own),
        started(own.size()),
        left(own.size()),
        ended(static_cast<size_t>(order.tiles->kv_tiles())),
        row_next(static_cast<size_t>(order.group) * static_cast<size_t>(order.tiles->q_tiles())),
        row_memory(row_next.size(), {-1, 0}) {}

  /// Starts chains [from, from + count). The first that was started before; -1: none.
  int32_t start(int32_t from, int32_t count) {
    left -= static_cast<size_t>(count);
    return mark(started, from, count);
  }
  /// The same of ending the sums of tiles.
  int32_t end(int32_t tile, int32_t count) { return mark(ended, tile, count); }

 private:
  static int32_t mark(std::vector<uint8_t>& marks, int32_t from, int32_t count) {
    const auto begin = marks.begin() + from, end = begin + count;
    uint8_t any = 0;  // without a branch for each
    for (auto mark = begin; mark != end; ++mark) any |= *mark;
    if (any) return static_cast<int32_t>(std::find(begin, end, 1) - marks.begin());
    std::fill(begin, end, 1);
    return -1;
  }
};

}  // namespace verbatim::dist
