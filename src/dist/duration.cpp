#include "dist/duration.h"

#include <algorithm>
#include <span>
#include <tuple>

namespace verbatim::dist {
namespace {

struct Entry {
  int32_t stage, room, head;
  const Share* share;
};

}  // namespace

std::vector<int32_t> starts_of(const Deals& deals, int32_t beside, int32_t entry_heads) {
  if (beside >= entry_heads &&
      std::ranges::all_of(deals, [](const auto& deal) { return deal->is_at_once(); }))
    return std::vector<int32_t>(deals.size());
  std::vector<int32_t> starts;
  int32_t begin = 0;
  for (int32_t head = 0; head < std::ssize(deals); ++head) {
    const int32_t in_entry = head % entry_heads;
    if (head > 0 && (in_entry == 0 || in_entry % beside == 0)) begin += deals[head - 1]->starts;
    starts.push_back(begin);
  }
  return starts;
}

double sums_sent(const Deals& deals, const std::vector<int32_t>& ranks) {
  std::vector<double> sent(ranks.size());
  for (const auto& deal : deals)
    for (const Share& share : deal->shares)
      for (const Handing& handing : share.handings)
        if (ranks[handing.to] != ranks[share.room]) sent[ranks[share.room]] += handing.chains;
  return std::ranges::max(sent);
}

double duration(const Deals& deals, const std::vector<int32_t>& starts,
                const std::vector<int32_t>& ranks, double launch,
                const std::function<bool(int32_t, int32_t, int32_t)>& joins) {
  std::vector<Entry> sequence;
  std::vector<std::vector<double>> ended;  // by head and convoy: its last share so far
  for (int32_t head = 0; head < std::ssize(deals); ++head) {
    for (const Share& share : deals[head]->shares)
      sequence.push_back({starts[head] + share.stage, share.room, head, &share});
    ended.emplace_back(deals[head]->convoys.size());
  }
  std::ranges::stable_sort(sequence, {},
                           [](const Entry& entry) { return std::tuple(entry.stage, entry.room); });
  std::vector<double> free(ranks.size());  // when each rank is
  for (size_t begin = 0, end; begin < sequence.size(); begin = end) {
    const Entry& first = sequence[begin];
    double& busy = free[ranks[first.room]];
    double start = busy, longest = 0, work = 0;
    for (end = begin; end < sequence.size(); ++end) {
      const auto& [stage, room, head, share] = sequence[end];
      if (stage != first.stage || room != first.room) break;
      if (end > begin && !joins(room, sequence[end - 1].head, head)) break;
      if (share->stage > 0)  // else it goes on from nothing
        for (const int32_t convoy : share->convoys) start = std::max(start, ended[head][convoy]);
      longest = std::max(longest, share->longest);
      work += share->work;
    }
    const double over = start + launch + std::max(longest, work);
    busy = over;
    for (const Entry& entry : std::span(sequence).subspan(begin, end - begin))
      if (!deals[entry.head]->is_at_once())
        for (const int32_t convoy : entry.share->convoys) ended[entry.head][convoy] = over;
  }
  return std::ranges::max(free);
}

}  // namespace verbatim::dist
