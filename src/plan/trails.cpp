#include "plan/trails.h"

#include <algorithm>
#include <cstddef>

namespace verbatim {
namespace {

constexpr size_t kWritten = SIZE_MAX;  // of a trail that does not repeat the first

bool repeats(const Trail& trail, const Trail& other) {
  return std::ranges::equal(trail.steps, other.steps, [](const Step& a, const Step& b) {
    return a.kept == b.kept && a.chains == b.chains && a.runs == b.runs;
  });
}

}  // namespace

std::vector<Trail> trails_of(const HeadOrder& order, std::span<const AlikeChains> issued) {
  // Of more query heads than there are runs, the first without any stands for all such.
  const size_t heads = std::min(static_cast<size_t>(order.group), order.runs.size() + 1);
  std::vector<Trail> trails(heads);
  for (size_t h = 0; h < heads; ++h) trails[h].q_head = static_cast<int32_t>(h);
  const std::vector<Step>& first = trails[0].steps;
  std::vector<size_t> repeated(heads, 0);  // steps that are those of the first, and not written
  const auto write = [&](size_t h) {
    trails[h].steps.assign(first.begin(), first.begin() + static_cast<ptrdiff_t>(repeated[h]));
    repeated[h] = kWritten;
  };
  trails[0].steps.reserve(issued.size());
  size_t near = 0;
  for (const AlikeChains& alike : issued) {
    const Chain& chain = order.chains[alike.chain];
    const auto go = [&](int32_t q_head, int32_t count, RunView runs) {
      for (int32_t i = 0; i < count; ++i) {
        const size_t h = std::min(static_cast<size_t>(q_head + i), heads - 1);
        size_t& at = repeated[h];
        if (h > 0 && at < first.size() && first[at].kept == chain.tile &&
            first[at].chains == alike.count && first[at].runs == runs) {
          ++at;
          continue;
        }
        if (h > 0 && at != kWritten) write(h);
        trails[h].steps.push_back({chain.tile, alike.count, runs});
      }
    };
    order.runs.for_each_repeat(chain.run_begin, chain.run_end, near, go);
  }
  for (size_t h = 1; h < heads; ++h)
    if (repeated[h] != kWritten && repeated[h] != first.size()) write(h);
  trails.erase(std::remove_if(trails.begin() + 1, trails.end(),
                              [&](const Trail& trail) {
                                return repeated[static_cast<size_t>(trail.q_head)] != kWritten ||
                                       repeats(trail, trails.front());
                              }),
               trails.end());
  return trails;
}

}  // namespace verbatim
