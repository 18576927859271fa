// Where orders "/rows:N" go from one chunk of rows to the next.
#pragma once

#include <cstdint>
#include <vector>

#include "verbatim/plan.h"

namespace verbatim {

/// The query positions at which chunks of rows begin, then the end. A sequence whose order makes
/// none is one.
std::vector<int64_t> row_chunk_edges(const HeadOrder& order);

}  // namespace verbatim
