// A world by chance, for tests that draw problems.
#pragma once

#include "dist/dist_case.h"
#include "mask/random_mask.h"

namespace verbatim::test {

/// A strategy, a sharding, and at most so many ranks as fit the query heads.
inline DistOptions random_options(Rng& rng, const Problem& problem, int32_t most) {
  DistOptions options;
  options.strategy = strategy_names()[static_cast<size_t>(uniform(rng, 0, 5))];
  options.shard = shard_names()[static_cast<size_t>(uniform(rng, 0, 3))];
  options.world = static_cast<int32_t>(uniform(rng, 1, most));
  if (options.strategy == "ulysses")
    while (problem.q_heads % options.world != 0) --options.world;
  options.joined_heads = static_cast<int32_t>(uniform(rng, 0, 2));
  options.overlapped = uniform(rng, 0, 1) == 1;
  return options;
}

}  // namespace verbatim::test
