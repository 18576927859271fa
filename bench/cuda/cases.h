// What the GPU benchmark runs: shapes and masks others have published numbers for.
#pragma once

#include <string>
#include <vector>

#include "verbatim/mask.h"
#include "verbatim/problem.h"

namespace verbatim::bench {

struct Case {
  std::string set;  // "dense", "gqa" or "masks"
  std::string name;
  Problem problem;
  Mask mask;
};

/// The 24 dense shapes of FlashAttention and DASH (16384 tokens, hidden size 2048), GQA 64:8 at
/// 8192 tokens, and the 12 static masks at 8192 tokens with 64:8 heads; bf16.
std::vector<Case> cases();

}  // namespace verbatim::bench
