#include "schedule/auto.h"

#include <algorithm>

#include "schedule/orders/orders.h"

namespace verbatim {
namespace {

// Constants of the contract: they choose orders, so they fix bits (docs/scheduling.md).
constexpr int64_t kSplitVisits = 12;    // of a split chain, to be worth its ordered dK and dV
constexpr int64_t kCanonicalHeads = 8;  // KV heads that a forward is assumed to have

/// Whether most KV tiles start at the row at which their left neighbour starts: their chains meet
/// there, and only other heads can fill the time until the first has passed.
bool starts_together(const TileMap& tiles) {
  int32_t together = 0, columns = 0;
  for (int32_t j = 1; j < tiles.kv_tiles(); ++j) {
    const auto left = tiles.column(j - 1), column = tiles.column(j);
    if (left.empty() || column.empty()) continue;
    ++columns;
    together += left.front().first == column.front().first;
  }
  return 2 * together > columns;
}

}  // namespace

std::string auto_order(Pass pass, const TileMap& tiles, int32_t group, Level level) {
  if (pass == Pass::forward) {
    int32_t longest = 0;
    for (int32_t q = 0; q < tiles.q_tiles(); ++q) {
      int32_t visits = 0;
      for (const TileRun& run : tiles.row(q)) visits += run.last - run.first;
      longest = std::max(longest, visits);
    }
    const bool idle = tiles.q_tiles() * group * kCanonicalHeads < order::kContractWorkers;
    return idle && longest > order::kSplit ? "descending/split" : "descending";
  }
  const bool split = group > 1 && tiles.count() >= kSplitVisits * tiles.kv_tiles();
  const bool tail = level <= Level::gpu_to_gpu && !starts_together(tiles);
  return std::string(tail ? "right_to_left_tail" : "right_to_left") + (split ? "/split" : "");
}

std::string auto_placement(const std::vector<std::shared_ptr<const HeadOrder>>& heads,
                           const Machine& machine, int32_t workers) {
  if (heads.empty() || machine.l2_bytes <= 0 || heads[0]->pass == Pass::forward) return "queue";
  size_t tasks = 1;
  for (const auto& order : heads) tasks = std::max(tasks, order->tasks.size());
  const auto fill = (static_cast<size_t>(workers) + tasks / 2) / tasks;
  const size_t least = starts_together(*heads[0]->tiles) ? 4 : 1;
  return "head_swizzled:" + std::to_string(std::max(fill, least));
}

}  // namespace verbatim
