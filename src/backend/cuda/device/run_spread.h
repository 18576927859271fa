// Runs as the host keeps them, spread to the list that kernels read.
#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "verbatim/runs.h"

namespace verbatim::cuda {

/// The list of one order, and the Runs that it is spread from.
struct RunSpread {
  const uint64_t* words;
  const Run* wide;
  const RunStretch* stretches;
  Run* to;
  int64_t runs;
  int32_t stretch_count;
};

/// Run `i` of the list.
VERBATIM_HD inline Run spread_run(const RunSpread& from, int64_t i) {
  int32_t low = 0;  // the last stretch that begins at or before it
  for (int32_t end = from.stretch_count; low + 1 < end;) {
    const int32_t middle = low + (end - low) / 2;
    if (static_cast<int64_t>(from.stretches[middle].begin) <= i) {
      low = middle;
    } else {
      end = middle;
    }
  }
  const RunStretch::Place at = from.stretches[low].place(static_cast<size_t>(i));
  const uint64_t word = from.words[at.kept];
  Run run = word & RunWord::kWide ? from.wide[word & ~RunWord::kWide] : RunWord::unpack(word);
  run.addend += at.more;
  run.q_head = at.q_head;
  return run;
}

}  // namespace verbatim::cuda
