// Which chains of an order do the same, one addend later: most of a regular one.
#pragma once

#include <cstdint>
#include <vector>

#include "verbatim/plan.h"

namespace verbatim {

/// Chains behind each other, on tiles behind each other, up or down. Each makes the visits of the
/// one before with addends that are one more. One chain may be so by itself.
struct AlikeChains {
  int32_t chain = 0, count = 0;  // into HeadOrder::chains
};

/// Alike ones that have the same place among the chains that share their tile.
struct ChainRow {
  int32_t chain = 0, count = 0;
  int32_t tile = 0, step = 1;  // of the first; from one to the next: 1 or -1
  int32_t addend = 0, addends = 1;

  int32_t end() const { return chain + count; }
  int32_t tile_of(int32_t chain) const { return tile + step * (chain - this->chain); }
  int32_t lowest() const { return step > 0 ? tile : tile - count + 1; }
};
inline ChainRow row_of(const Chain& chain, int32_t number) {
  return {number, 1, chain.tile, 1, chain.addend, chain.addends};
}

/// All chains of a backward twice: those that are alike, and these cut into rows.
struct ChainRows {
  std::vector<AlikeChains> alike;
  std::vector<ChainRow> rows;
};

/// In the sequence in which tasks are issued. Pieces of chains are by themselves. It is what takes
/// longest to say of a long order, so chains are read once.
ChainRows rows_of_chains(const HeadOrder& order);

}  // namespace verbatim
