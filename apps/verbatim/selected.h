// Programs of --kernel whose blocks an index tensor names: lists of blocks, given or drawn.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "options.h"
#include "result.h"
#include "verbatim/selected.h"

namespace verbatim::app {

/// Lists of blocks, as SelectedBlocks has them, and where they are from: "file" or "random".
struct Lists {
  std::vector<int32_t> entries;
  std::array<int64_t, 4> shape{};
  std::string source;

  SelectedBlocks blocks() const { return {entries.data(), shape}; }
};

/// For each batch entry, KV head and tile of queries the last block that they see and others, at
/// most `count` in all, in a random sequence.
Lists draw_lists(const Problem& problem, const TileMap& tiles, int64_t count);

/// What heads see of `mask`: the pairs in blocks that their lists name.
Mask selected_mask(const Mask& mask, const TileMap& tiles, const Lists& lists);

/// Throws Error naming the option that is of plans, which no such program has.
void refuse_planning(const PlanningOptions& planning, const TileMap& tiles);

/// The member `selection` of a result; `mask` is the selected one.
Json describe(const SelectedAttention& attention, const Lists& lists, const Problem& problem,
              const Mask& mask);

}  // namespace verbatim::app
