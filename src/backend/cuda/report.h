// What the host makes of the reports of waits that expired.
#pragma once

#include "backend/cuda/device/params.h"
#include "verbatim/error.h"

namespace verbatim::cuda {

/// A report in memory that every kernel of the current device can write; never freed, as graphs may
/// refer to it as long as the process lives.
WaitReport* make_report();

/// Throws Error(device) with the tile's coordinates when a wait has expired, once: the report is
/// then free for the next. Else a look at memory, without a call of CUDA.
void check_report(WaitReport& report);

}  // namespace verbatim::cuda
