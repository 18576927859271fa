// Where orders "/rows:N" go from one chunk of rows to the next.
#pragma once

#include <cstdint>
#include <vector>

#include "verbatim/plan.h"

namespace verbatim {

/// The query positions at which chunks of rows begin, of all sequences, and the end of the last.
/// Empty: chains walk all rows of one query head before they go on to the next.
std::vector<int64_t> row_chunk_edges(const HeadOrder& order);

}  // namespace verbatim
