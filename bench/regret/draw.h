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

/// Number `index` of the stream `seed`: 300 to 20,000 tokens, 1 to 16 KV heads, groups of 1 to 16,
/// head dim 64 or 128, the fourteen masks in turn; drawn again until the backward has at most
/// `most_flops` and at least a thousandth of them.
Drawn draw(uint64_t seed, int64_t index, double most_flops);

}  // namespace verbatim::regret
