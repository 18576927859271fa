// What a chain of the backward does with the dK and dV of its tile, on every backend.
#pragma once

#include <algorithm>

#include "core/host_device.h"
#include "verbatim/plan.h"

namespace verbatim {

/// Whether at its end a chain adds its dK and dV to the tile's sum, which chains before it have
/// left. Of Chain, or what a kernel keeps of it.
template <class AnyChain>
VERBATIM_HD bool joins_sum(const AnyChain& chain) {
  return !chain.pauses && chain.addend > 0 && (!chain.continues || chain.apart);
}

/// Whether what a chain goes on from (`at_start`), or leaves, lies apart from the tile's sum.
template <class AnyChain>
VERBATIM_HD bool lies_apart(const AnyChain& chain, bool at_start) {
  return chain.apart && (at_start || chain.pauses);
}

/// How many sums of a kept tile grow beside its result: 0 where no tile has several chains, 2 where
/// pieces pass on what lies apart.
inline int32_t tile_sums(const Plan& plan) {
  int32_t sums = 0;
  for (const auto& order : plan.orders)
    for (const Chain& chain : order->chains)
      sums = std::max(sums, chain.apart ? 2 : chain.addends > 1 ? 1 : 0);
  return sums;
}

}  // namespace verbatim
