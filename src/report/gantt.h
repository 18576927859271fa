// Plans over time: who did what when, and who waited.
#pragma once

#include <span>

#include "report/svg.h"
#include "verbatim/timeline.h"

namespace verbatim::report {

/// The timelines one above the other, each scaled to its own end: one lane per worker, chains in
/// the hue of their head, waits in red, reductions and transfers pale. Small plans carry tile
/// numbers in their bars. `chain_is_kv`: as for condense(), which large timelines should have gone
/// through.
Picture gantt_picture(std::span<const Timeline> timelines, bool chain_is_kv);

}  // namespace verbatim::report
