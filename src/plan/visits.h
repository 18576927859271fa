// Orders in parts: some visits of a run, and what comes before the visits of a piece.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "verbatim/plan.h"

namespace verbatim {

/// Appends visits [begin, end) of `run`, in as few runs as they need.
void append_visits(std::vector<Run>& runs, const Run& run, int32_t begin, int32_t end);

/// Addends of each row that come before those of a piece's backward, [group][q_tiles]: as many as
/// the first of its visits in here has before it. 0 where it has none.
std::vector<int32_t> addends_before(const HeadOrder& piece);

/// Tasks of pieces, one order a head, that must be under way at once so that no wait can last
/// forever when free workers take those of `sequence`, which has each once. The addends that a row
/// has in its piece follow each other.
int32_t residency_of(std::span<const std::shared_ptr<const HeadOrder>> heads,
                     std::span<const PlacedTask> sequence);

}  // namespace verbatim
