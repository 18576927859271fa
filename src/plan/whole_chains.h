// Chains that are cut in pieces (Chain::continues), and what they were before.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "verbatim/plan.h"

namespace verbatim {

/// Sets Chain::pauses and Chain::apart of chains whose other fields are known.
void mark_pieces(std::vector<Chain>& chains);

/// The chains of an order, whether it has them whole or cut in pieces for few workers; their
/// addends count chains.
class WholeChains {
 public:
  WholeChains() = default;
  /// Reads `order` as long as it is there. `may_be_cut`: false where it is known that none is.
  explicit WholeChains(const HeadOrder& order, bool may_be_cut = true);
  const Chain& operator[](size_t chain) const { return chains_[chain]; }
  size_t size() const { return chains_.size(); }
  auto begin() const { return chains_.begin(); }
  auto end() const { return chains_.end(); }

 private:
  std::shared_ptr<const std::vector<Chain>> joined_;  // where some are cut
  std::span<const Chain> chains_;
};

}  // namespace verbatim
