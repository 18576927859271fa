// Runs as the host keeps them, spread to the list that kernels read.
#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "verbatim/packed_runs.h"

namespace verbatim::cuda {

/// Words [word, word + size), as `heads` query heads from `q_head` on have them one after another.
struct RunPart {
  int64_t run;  // the first, in the list
  int64_t word;
  int32_t size, q_head;
};

/// The list of one order.
struct RunSpread {
  const uint64_t* words;  // RunWord; of those that fit none a place in `wide`
  const Run* wide;
  const RunPart* parts;  // ascending, the first of run 0
  Run* to;
  int64_t runs;
  int32_t part_count;
};

/// Run `i` of the list.
VERBATIM_HD inline Run spread_run(const RunSpread& from, int64_t i) {
  int32_t low = 0;  // the last part that begins at or before it
  for (int32_t end = from.part_count; low + 1 < end;) {
    const int32_t middle = low + (end - low) / 2;
    if (from.parts[middle].run <= i) {
      low = middle;
    } else {
      end = middle;
    }
  }
  const RunPart& part = from.parts[low];
  const auto in = static_cast<int32_t>(i - part.run);
  const uint64_t word = from.words[part.word + in % part.size];
  Run run = word & RunWord::kWide ? from.wide[word & ~RunWord::kWide] : RunWord::unpack(word);
  run.q_head = part.q_head + in / part.size;
  return run;
}

}  // namespace verbatim::cuda
