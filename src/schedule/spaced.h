// Tasks placed so that chains which follow each other start apart.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "verbatim/schedule.h"

namespace verbatim {

/// `tasks` of these heads in another sequence. Where no task waits for a later one, none does in
/// the result. What follows each other through the same rows, a line, keeps its sequence: tasks of
/// one sequence, or of some query heads in it that its others do not walk; all of a head where a
/// task has chains of several sequences. As they were where parts of a tile would not be added in
/// turn.
///
/// Played on so many workers, with every visit as long as every other, and four for a task: a free
/// one takes the next task of the first line in which none has started for two visits, unless the
/// lines before have three tasks left for each worker. So chains that start at one row do not start
/// at once, nor do many parts of a tile, which are added in turn, end at once (docs/placements.md).
std::vector<PlacedTask> spaced(std::span<const std::shared_ptr<const HeadOrder>> heads,
                               std::vector<PlacedTask> tasks, int32_t workers);

}  // namespace verbatim
