// Where orders "/rows:N" go from one chunk of rows to the next.
#pragma once

#include <cstdint>
#include <vector>

#include "verbatim/plan.h"

namespace verbatim {

/// The query positions at which chunks of rows begin, and sequences, which have one where their
/// order makes none; then the end. Empty: no sequence's order has chunks.
std::vector<int64_t> row_chunk_edges(const HeadOrder& order);

}  // namespace verbatim
