#include "plan/alike.h"

#include <cstdlib>

namespace verbatim {

std::vector<AlikeChains> alike_chains(const HeadOrder& order) {
  std::vector<AlikeChains> all;
  const std::vector<Chain>& chains = order.chains;
  size_t near = 0;
  int32_t step = 0;  // between the last two
  const auto goes_on = [&](int32_t c) {
    if (c == 0 || all.empty() || all.back().chain + all.back().count != c) return false;
    const Chain &before = chains[c - 1], &chain = chains[c];
    const int32_t way = chain.tile - before.tile;
    const bool cut = before.continues || chain.continues ||
                     (c + 1 < std::ssize(chains) && chains[c + 1].continues);
    if (cut || std::abs(way) != 1 || (all.back().count > 1 && way != step) ||
        !order.runs.are_next(before.run_begin, before.run_end, chain.run_begin, chain.run_end,
                             near))
      return false;
    step = way;
    return true;
  };
  for (const Task& task : order.tasks) {
    for (int32_t c = task.chain_begin; c < task.chain_end; ++c) {
      if (goes_on(c)) {
        ++all.back().count;
      } else {
        all.push_back({c, 1});
      }
    }
  }
  return all;
}

}  // namespace verbatim
