#include "dist/duration.h"

#include <algorithm>
#include <tuple>

namespace verbatim::dist {

double duration(const std::vector<std::shared_ptr<const Deal>>& deals, int32_t world) {
  std::vector<std::tuple<int32_t, size_t, size_t>> sequence;  // stage, head, share
  std::vector<std::vector<double>> ended;  // by head and convoy: its last share so far
  int32_t begin = 0;
  for (size_t head = 0; head < deals.size(); ++head) {
    const Deal& deal = *deals[head];
    for (size_t s = 0; s < deal.shares.size(); ++s)
      sequence.emplace_back(begin + deal.shares[s].stage, head, s);
    ended.emplace_back(deal.convoys.size());
    begin += deal.starts;
  }
  std::ranges::sort(sequence);
  std::vector<double> free(static_cast<size_t>(world));  // when each rank is
  for (const auto& [stage, head, s] : sequence) {
    const Share& share = deals[head]->shares[s];
    double& end = free[share.rank];
    for (const int32_t convoy : share.convoys) end = std::max(end, ended[head][convoy]);
    end += share.time;
    for (const int32_t convoy : share.convoys) ended[head][convoy] = end;
  }
  return std::ranges::max(free);
}

}  // namespace verbatim::dist
