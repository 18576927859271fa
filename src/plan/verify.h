// verify() in two steps, for plans that differ in their placement only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "verbatim/plan.h"

namespace verbatim {

/// What is proved of the orders of a plan, whatever its placement. Throws as verify().
class OrderProof {
 public:
  using Waits = std::vector<std::pair<int32_t, int32_t>>;  // (waiting, awaited) tasks of a head

  explicit OrderProof(const Plan& plan);
  /// Whether some task waits for one that its order issues later.
  bool rotates() const { return rotates_; }
  /// verify() of `plan`, whose orders are those of the constructor's.
  int32_t residency(const Plan& plan);

 private:
  std::vector<bool> ordered_;                // by order: none of its tasks waits for a later one
  std::vector<std::optional<Waits>> waits_;  // by order, once they have been asked for
  bool rotates_ = false;
};

/// The most tasks of a block that no task before it waits into. `furthest`: of each task of a
/// sequence the last that it waits for, or itself.
int32_t largest_block(std::span<const int32_t> furthest);

}  // namespace verbatim
