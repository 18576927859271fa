// Problems drawn from a seed, which no rule of `auto` was fitted to.
#pragma once

#include <cstdint>
#include <string>

#include "verbatim/mask.h"
#include "verbatim/problem.h"

namespace verbatim::regret {

struct Drawn {
  std::string name;  // "17 causal 3120 24:8 hd64"
  Problem problem;
  Mask mask;
};

/// What may be drawn.
struct Range {
  int64_t kv_heads = 16, group = 16;  // at most
  double flops = 6e12;                // of the backward at most, and at least a thousandth of them
};

/// Number `index` of the stream `seed`: 300 to 20,000 tokens, head dim 64 or 128, the fourteen
/// masks in turn; drawn again until it is within `range`.
Drawn draw(uint64_t seed, int64_t index, const Range& range);

}  // namespace verbatim::regret
