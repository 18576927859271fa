// What each query head of a group does in an order, in sequence.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/alike.h"

namespace verbatim {

/// Runs behind one another, by the tile that their chain keeps.
struct Step {
  int32_t kept;
  int32_t chains;  // alike, this one and those that follow it
  RunView runs;
};

/// What one query head does, in sequence.
struct Trail {
  int32_t q_head = 0;
  std::vector<Step> steps;
};

/// The trails of the query heads when chains run as `issued`. Those that
/// repeat the first, as in a group all do, are left out: what is proved of the first holds for
/// them.
std::vector<Trail> trails_of(const HeadOrder& order, std::span<const AlikeChains> issued);

}  // namespace verbatim
