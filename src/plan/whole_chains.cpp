#include "plan/whole_chains.h"

#include <algorithm>
#include <tuple>

namespace verbatim {
namespace {

/// Numbers the chains of each tile anew, in the sequence of their addends.
void number_chains(std::vector<Chain>& chains) {
  std::vector<Chain*> sorted;
  for (Chain& chain : chains) sorted.push_back(&chain);
  std::ranges::sort(sorted, {}, [](const Chain* c) { return std::tuple(c->tile, c->addend); });
  for (size_t first = 0, end = 0; first < sorted.size(); first = end) {
    while (end < sorted.size() && sorted[end]->tile == sorted[first]->tile) ++end;
    for (size_t c = first; c < end; ++c) {
      sorted[c]->addend = static_cast<int32_t>(c - first);
      sorted[c]->addends = static_cast<int32_t>(end - first);
    }
  }
}

}  // namespace

void mark_pieces(std::vector<Chain>& chains) {
  for (size_t k = 0; k < chains.size(); ++k) {
    Chain& chain = chains[k];
    chain.pauses = k + 1 < chains.size() && chains[k + 1].continues;
    chain.apart = chain.continues ? k > 0 && chains[k - 1].apart : chain.pauses && chain.addend > 0;
  }
}

WholeChains::WholeChains(const HeadOrder& order, bool may_be_cut) : chains_(order.chains) {
  if (!may_be_cut || std::ranges::none_of(order.chains, &Chain::continues)) return;
  std::vector<Chain> chains;
  for (const Chain& chain : order.chains) {
    if (chain.continues && !chains.empty()) {
      chains.back().run_end = chain.run_end;
      continue;
    }
    chains.push_back(chain);
    chains.back().pauses = chains.back().apart = false;
  }
  number_chains(chains);
  joined_ = std::make_shared<const std::vector<Chain>>(std::move(chains));
  chains_ = *joined_;
}

}  // namespace verbatim
