// What the host makes of reports of kernels: of waits that expired, of lists with a wrong entry.
#pragma once

#include "backend/cuda/device/params.h"
#include "backend/selected.h"
#include "verbatim/error.h"

namespace verbatim::cuda {

/// A wrong entry of lists on the device; in memory as WaitReport.
struct ListReport {
  int32_t state;  // WaitReport::State
  WrongEntry entry;
  int32_t blocks;  // that there are
};

/// A report in memory that every kernel of the current device can write; never freed, as graphs may
/// refer to it as long as the process lives.
WaitReport* make_wait_report();
ListReport* make_list_report();

/// Throws Error(device) with the tile's coordinates when a wait has expired, once: the report is
/// then free for the next. Else a look at memory, without a call of CUDA.
void check_report(WaitReport& report);
/// The same of a wrong entry: Error(invalid_argument), naming it.
void check_report(ListReport& report);

}  // namespace verbatim::cuda
