#include "schedule/auto.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "schedule/orders/orders.h"

namespace verbatim {
namespace {

// Constants of the contract: they choose orders, so they fix bits (docs/scheduling.md).
constexpr int64_t kCanonicalHeads = 8;      // KV heads that a problem is assumed to have, and ...
constexpr int64_t kCanonicalTokens = 8192;  // ... tokens: shorter sequences come several at once
constexpr double kSplitCost = 4;            // start and ordered end of one more chain, in visits
constexpr double kWalkCost = 51;            // chains of w visits cost (w / kWalkCost)^3 of them
constexpr int32_t kHeadsOfLong = 4;         // about so many a chain of a long sequence visits
constexpr int32_t kHeadsOfShared = 2;   // ... and of KV tiles that far more rows see than others
constexpr int64_t kLeastRotation = 32;  // visits of a chain that is worth rotating, and ...
constexpr int64_t kLeastColumns = 4;    // ... KV tiles of its sequence, of which ...
constexpr int64_t kMostColumns = 256;   // ... more keep too many rows in L2

// KV tiles that start at the same row: chains of so many, one behind the other, had better not walk
// a group.
constexpr int32_t kLeastConvoy = 14;

// Visits of a head whose waits may be walked one by one while a plan is made.
constexpr int64_t kProvableVisits = 1 << 17;

using Column = std::span<const TileRun>;

/// Whether `so(left, column)` holds for most KV tiles that are visited, as is their left neighbour.
template <class So>
bool most_neighbours(const TileMap& tiles, So so) {
  int32_t found = 0, columns = 0;
  for (int32_t j = 1; j < tiles.kv_tiles(); ++j) {
    const Column left = tiles.column(j - 1), column = tiles.column(j);
    if (left.empty() || column.empty()) continue;
    ++columns;
    found += so(left, column);
  }
  return 2 * found > columns;
}

/// Whether most KV tiles start at the row at which their left neighbour starts: their chains meet
/// there, and only other heads can fill the time until the first has passed.
bool starts_together(const TileMap& tiles) {
  return most_neighbours(
      tiles, [](Column left, Column column) { return left.front().first == column.front().first; });
}

/// How many KV tiles at most start at the same row.
int32_t most_that_start_together(const TileMap& tiles) {
  std::vector<int32_t> starts(static_cast<size_t>(tiles.q_tiles()));
  for (int32_t j = 0; j < tiles.kv_tiles(); ++j)
    if (!tiles.column(j).empty()) ++starts[static_cast<size_t>(tiles.column(j).front().first)];
  return starts.empty() ? 0 : std::ranges::max(starts);
}

/// Whether most KV tiles have a hole and end with the rows with which their left neighbour ends
/// (causal_blockwise: the last document). Chains that walk down reach those rows at very different
/// times, and wait there for the slowest; chains that walk up begin with them.
bool meets_late(const TileMap& tiles) {
  return most_neighbours(tiles, [](Column left, Column column) {
    const auto is_hole = [](const TileRun& a, const TileRun& b) { return a.last < b.first; };
    return std::ranges::adjacent_find(column, is_hole) != column.end() &&
           left.back().last == column.back().last;
  });
}

/// Visits of the fullest row.
int64_t longest_row(const TileMap& tiles) {
  int64_t longest = 0;
  for (int32_t q = 0; q < tiles.q_tiles(); ++q)
    longest = std::max(longest, count_tiles(tiles.row(q)));
  return longest;
}

/// Whether the longest row of visits is at least half as long again as the mean.
bool unequal_rows(const TileMap& tiles) {
  return 2 * longest_row(tiles) * tiles.q_tiles() >= 3 * tiles.count();
}

/// The share of a head's query rows that its longest sequence has: chains of others share no rows.
double longest_sequence(const TileMap& tiles) {
  const int64_t rows = tiles.q_edges.back();
  int64_t longest = 0, end = rows;
  for (auto sequence = tiles.sequences.rbegin(); sequence != tiles.sequences.rend(); ++sequence) {
    longest = std::max(longest, end - sequence->q_begin);
    end = sequence->q_begin;
  }
  return static_cast<double>(longest) / static_cast<double>(std::max<int64_t>(rows, 1));
}

/// The least number of equal parts, `parts` or more, that a group (of at least `parts`) can be cut
/// into. With unequal ones a row waits for the longer at every KV tile (28:4 heads in four parts:
/// 4 % longer than in seven, 40:8 in two: 19 % longer than in five).
int32_t equal_parts(int32_t group, int32_t parts) {
  while (group % parts != 0) ++parts;
  return parts;
}

/// Visits of one query head: all of them, and those of the fullest KV tile.
struct Load {
  int64_t visits = 0, longest = 0, columns = 0, rows = 0;
  int64_t copies = 1;  // of the sequence that are assumed to run together

  explicit Load(const TileMap& tiles)
      : visits(tiles.count()),
        columns(tiles.kv_tiles()),
        rows(tiles.q_edges.back()),
        copies(kCanonicalTokens / std::clamp<int64_t>(rows, 1, kCanonicalTokens)) {
    for (int32_t j = 0; j < tiles.kv_tiles(); ++j)
      longest = std::max(longest, count_tiles(tiles.column(j)));
  }
  /// Whether the longest chain is at least a quarter longer than the mean.
  bool unequal() const { return 4 * longest * columns >= 5 * visits; }
  /// Whether it is at least 2.5 times as long: some KV tiles are seen by far more rows than others
  /// (a question that all answers share).
  bool has_shared_tiles() const { return 2 * longest * columns >= 5 * visits; }
  /// Whether it is at least three times as long.
  bool has_long_chains() const { return longest * columns >= 3 * visits; }
  /// How many chains a KV tile of a group should have. Each costs kSplitCost. The more visits one
  /// makes, the more of them wait (left neighbours take longer for each query head) and the more is
  /// left at the end, which other sequences can fill: the cube fits what an H200 takes
  /// (docs/kernels/backward-sm90.md). Long sequences keep their rows in L2 only while a chain goes
  /// through several query heads together with its neighbours, and few long chains do so anyway.
  int32_t best_parts(int32_t group) const {
    const bool keep_heads = rows > kCanonicalTokens || has_long_chains();
    const int32_t least = rows <= 2 * kCanonicalTokens ? 2 : 1;
    const int32_t few = std::max((group + kHeadsOfLong / 2) / kHeadsOfLong, least);
    const int32_t most = keep_heads ? std::min(few, group) : group;
    // In units of 1 / (kWalkCost^3 beside^2) visits: whole numbers, the same on every machine. Half
    // the copies, for the few KV heads of a shard lose more without parts than many with them.
    const auto beside = static_cast<double>(std::max<int64_t>(copies / 2, 1));
    const double unit = kWalkCost * kWalkCost * kWalkCost * beside * beside;
    const auto cost = [&](int32_t parts) {
      const auto walk = static_cast<double>(longest * ((group + parts - 1) / parts));
      return kSplitCost * static_cast<double>(columns * parts) * unit + walk * walk * walk;
    };
    int32_t best = 1;
    for (int32_t parts = 1; parts < most;) {
      parts = equal_parts(group, parts + 1);
      if (cost(parts) < cost(best)) best = parts;
    }
    return best;
  }
};

/// Whether the chains of a sequence that sees all its keys should each start at another row
/// (shift), so that they pass through its rows side by side instead of one behind the other: the
/// next one is two visits behind, which hides the hand-off. All must run at once, so heads come in
/// whole waves, which they should fill: to more than 7/8, or without a group, where the gain is
/// smaller, to 31/32, unless there are so many KV tiles that they rotate in chunks.
bool should_rotate(const TileMap& tiles, const Load& load, int32_t group) {
  const int64_t rows = tiles.q_tiles(), columns = tiles.kv_tiles();
  const int64_t together = order::rotating_tiles(columns);
  if (columns < kLeastColumns || columns > kMostColumns || rows < 2 * together - 1 ||
      rows * group < kLeastRotation || load.visits != rows * columns)
    return false;
  const int64_t side_by_side = order::kWave / together, heads = kCanonicalHeads * load.copies;
  if (group == 1 && together == columns) return 32 * side_by_side * together >= 31 * order::kWave;
  const int64_t waves = (heads + side_by_side - 1) / side_by_side;
  return 8 * heads * together > 7 * waves * order::kWave;
}

/// Of heads whose chains rotate, which must run at once.
std::vector<std::string> rotating_placements(const HeadOrder& head, int32_t workers) {
  // Chains of packed sequences are of any length, and rotate with the equal ones of theirs.
  if (head.tiles->sequences.size() > 1) return {"longest_first", "queue"};
  // Heads start one after another; where chains are short, or of a group and long, as many side by
  // side as half the workers hold at once (measured on an H200).
  const int32_t kv_tiles = head.tiles->core().kv_tiles();
  const auto columns = static_cast<size_t>(std::max(kv_tiles, 1));
  const auto together = static_cast<size_t>(order::rotating_tiles(kv_tiles));
  // One chunk of a head waits for the one before: others run beside it.
  if (together < columns)
    return {fmt::format("head_swizzled:{}:{}",
                        std::max<size_t>(static_cast<size_t>(workers) / together, 1), together)};
  const size_t half = static_cast<size_t>(workers) / 2;
  const bool alone = head.group == 1 && columns >= 32;
  return {fmt::format("head_swizzled:{}", alone ? 1 : std::max<size_t>(half / columns, 1))};
}

}  // namespace

std::string auto_order(Pass pass, const TileMap& tiles, int32_t group) {
  // Rows are split by none: one has the same sum among many and alone.
  if (pass == Pass::forward) return "descending";
  const Load load(tiles);
  if (load.visits == 0) return "descending";
  if (should_rotate(tiles, load, group)) return "shift";
  // KV tiles that far more rows see than others are issued first, in parts; the others, whose parts
  // would only wait for each other, stay whole. Without parts they come last where a row sees all
  // keys: few long chains that come first hold up all others (measured on an H200).
  if (load.has_shared_tiles() && !meets_late(tiles)) {
    const bool long_ones = load.has_long_chains();
    const int32_t parts = long_ones ? std::max(group / kHeadsOfShared, 2) : 2;
    if (group > 1) return fmt::format("descending/even:{}", equal_parts(group, parts));
    if (long_ones && longest_row(tiles) == load.columns) return "right_to_left";
  }
  const int32_t together = most_that_start_together(tiles);
  const bool convoy = together >= kLeastConvoy && 2 * together > load.columns;
  const int32_t best = std::min(load.best_parts(group) * (meets_late(tiles) ? 2 : 1), group);
  // Two unequal parts of seven heads that meet late are 7 % faster than seven equal ones.
  const int32_t equal = equal_parts(group, best), several = equal > 3 * best ? best : equal;
  const int32_t parts = convoy ? group : several;
  if (parts == 1) return "descending";
  return parts == group ? "descending/split" : fmt::format("descending/split:{}", parts);
}

std::vector<std::string> auto_placements(const std::vector<std::shared_ptr<const HeadOrder>>& heads,
                                         bool rotates, const Machine& machine, int32_t workers,
                                         int64_t head_bytes) {
  if (heads.empty() || machine.l2_bytes <= 0) return {"queue"};
  if (heads[0]->pass == Pass::forward) {
    if (!unequal_rows(*heads[0]->tiles)) return {"queue"};
    // As many heads side by side as keep their K and V in L2, so that long tasks start before short
    // ones; in equal sections, for the tasks of a small last one would end late.
    const auto count = static_cast<double>(heads.size());
    const double bytes = count * static_cast<double>(head_bytes);
    return {fmt::format("head_swizzled:{:.0f}",
                        std::ceil(count / std::ceil(bytes / machine.l2_bytes)))};
  }
  const HeadOrder& head = *heads[0];
  if (rotates) return rotating_placements(head, workers);
  size_t tasks = 1;
  for (const auto& order : heads) tasks = std::max(tasks, order->tasks.size());
  const auto fill = (static_cast<size_t>(workers) + tasks / 2) / tasks;
  const size_t many = static_cast<size_t>(workers) / 4;  // four workers a head keep its rows in L2
  // Chains of other sequences share no rows, and those of other query heads run at other times.
  const double shared_bytes = static_cast<double>(head_bytes) * longest_sequence(*head.tiles) /
                              static_cast<double>(head.group);
  const auto fitting = static_cast<size_t>(machine.l2_bytes / std::max(shared_bytes, 1.0));
  // Heads side by side fill the time in which chains wait for each other, until their rows leave
  // L2; the bounds were measured on an H200 (docs/kernels/backward-sm90.md).
  // Where documents have different orders, their sections are those of descending ones.
  const std::string order =
      head.name == "none" ? auto_order(Pass::backward, *head.tiles, head.group) : head.name;
  const bool descends = order.starts_with("descending") || order == "auto";
  const Load load(*head.tiles);
  const bool staggered = descends && load.unequal();
  // Chains of a KV tile, and query heads that each of them visits; of packed sequences the mean.
  const auto columns = static_cast<size_t>(std::max<int64_t>(load.columns, 1));
  const size_t parts = std::max<size_t>((head.chains.size() + columns / 2) / columns, 1);
  const size_t visited = static_cast<size_t>(head.group) / parts;
  const bool walks = visited > 1;
  const auto between = [](size_t low, size_t value, size_t high) {
    return std::clamp(value, low, std::max(low, high));
  };
  const size_t count = heads.size();
  size_t side_by_side = 1;
  if (staggered) {
    // With five sections the starts are spread best, if that leaves a section heads enough; fewer
    // heads where not even one's rows fit into L2, or of a group not three's.
    const bool far = head.group > 1 ? fitting < 3 : fitting == 0;
    const size_t low = std::max<size_t>(many / (far ? 8 : 4), 1), fifth = count / 5;
    side_by_side = walks ? low
                         : between(fifth >= many / 6 ? std::clamp<size_t>(fifth, 1, low) : low,
                                   fitting * 4 / 3, 2 * many);
  } else if (load.has_long_chains()) {
    side_by_side = many;
  } else if (starts_together(*head.tiles)) {
    side_by_side = between(4, fitting, many);
  }
  side_by_side = std::max(fill, side_by_side);
  // The nearest number that divides the heads into equal sections.
  const size_t equal = std::max<size_t>((count + side_by_side / 2) / side_by_side, 1);
  const std::string sections =
      fmt::format("{}:{}", staggered ? "staggered" : "head_swizzled", (count + equal - 1) / equal);
  // Longest first puts all parts side by side: few enough stay in L2. What waits late is better
  // spread.
  const bool shares = load.has_shared_tiles() && head.tiles->sequences.size() <= 1;
  const bool few = shares || load.has_long_chains() ||
                   (parts == 1 ? count <= many : count * parts <= 8 * visited);
  if (staggered && (walks || shares) && few && !meets_late(*head.tiles) &&
      head.tiles->count() <= kProvableVisits)
    return {"longest_first", sections};
  return {sections};
}

}  // namespace verbatim
