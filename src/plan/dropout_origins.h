// Where dropout counts from, for backends: a plan knows the sequences of its masks.
#pragma once

#include <vector>

#include "core/dropout.h"
#include "verbatim/plan.h"

namespace verbatim {

/// The origins of all query tiles of a plan.
struct DropoutOrigins {
  /// Of each order, [orders][q_tiles]; sequences are counted inside the head.
  std::vector<std::vector<DropoutOrigin>> of_order;
  /// Sequences of the batch entries before each head's, [batch * kv_heads].
  std::vector<int64_t> first_sequence;
  std::vector<int32_t> order_of_head;

  explicit DropoutOrigins(const Plan& plan);
  DropoutOrigin at(int32_t head, int32_t q_tile) const;
};

}  // namespace verbatim
