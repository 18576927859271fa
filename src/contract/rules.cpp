#include "contract/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace verbatim::contract {
namespace {

// Times in visits, fitted to an H200 (docs/lab/regret.md).
constexpr double kLaunch = 3;  // before the first chain
constexpr double kChain = 4;   // start and end of a chain
constexpr double kShare = 4;   // more, where its dK and dV meet those of other chains
constexpr double kTurn = 0.5;  // of a row, from addend to addend

// Where a rule may not know how many KV heads run together: from kFewHeads to kManyHeads, and of
// sequences shorter than kTokens, which seldom come alone, as many times more as fit.
constexpr double kFewHeads = 4, kManyHeads = 16, kTokens = 8192;

constexpr double kSkewed = 2.5;  // longest column over the mean
constexpr double kFewest = 2;    // KV heads known to run together
// KV tiles that rotate (docs/lab/regret.md).
constexpr int64_t kLeastRotating = 12;        // fewer chains fill no wave
constexpr int64_t kLeastOfGroups = 4;         // unless a group keeps them rotating
constexpr int64_t kMostRotating = kWave / 2;  // more would rotate in chunks, one after another

// Where rows are cut into chunks (docs/lab/chunks.md).
constexpr int64_t kChunkRows = 2048;  // query positions: their Q, dO and dQ stay in L2
constexpr int64_t kChunkTiles = 32;   // that these are at least, so that chains stay long
constexpr int64_t kChunks = 8;        // that some KV tile is seen from, at least
constexpr int64_t kChunkGroup = 4;    // query heads: dK and dV are added seldom enough

// Where each query head has chains of its own (docs/lab/groups.md).
constexpr int64_t kSplitRows = 1536;  // that see a KV tile, in the mean: chains are long enough
constexpr int64_t kSplitGroup = 16;   // query heads, at most

/// The time of `heads` KV heads in chains of `parts` of the group: what kWave workers share, and
/// the longest chain with the turns of the longest row, joined as the legs of a triangle. Only
/// operations that are rounded alike on every machine.
double time_of(const Shape& shape, int64_t parts, bool even, double heads) {
  double work = 0, longest = 0;
  for (const int64_t visits : shape.columns) {
    const int64_t chains =
        even ? even_parts(shape.group, parts, visits, shape.longest_column) : parts;
    const int64_t walked = (shape.group + chains - 1) / chains;
    const double each = chains > 1 ? kChain + kShare : kChain;
    work += static_cast<double>(visits * shape.group) + static_cast<double>(chains) * each;
    longest = std::max(longest, static_cast<double>(visits * walked) + each);
  }
  const double shared = heads * work / kWave;
  const double alone = longest + kTurn * static_cast<double>(shape.longest_row);
  return kLaunch + std::sqrt(shared * shared + alone * alone);
}

std::string in_parts(const char* order, const Shape& shape, int64_t parts) {
  if (parts == 1) return order;
  if (parts == shape.group) return fmt::format("{}/split", order);
  return fmt::format("{}/split:{}", order, parts);
}

std::string descending(const Shape& shape, bool even) {
  const int64_t parts = best_parts(shape, even);
  if (even && parts > 1) return fmt::format("descending/even:{}", parts);
  return in_parts("descending", shape, parts);
}

/// The parts of a group, at most `most`, of which `time` is least; of equals the fewest. Only
/// `equal` ones where a row waits for the longest at every KV tile.
template <class F>
int64_t parts_of_least(int64_t group, int64_t most, bool equal, F&& time) {
  int64_t best = 1;
  double least = time(best);
  for (int64_t parts = 2; parts <= std::min(most, group); ++parts) {
    if (equal && group % parts != 0) continue;
    const double found = time(parts);
    if (found >= least) continue;
    best = parts;
    least = found;
  }
  return best;
}

/// The parts of a group by which chains that rotate, which are equally long, end first. Parts go
/// side by side as whole sets of chains, as many as kWave workers hold; chains of whole groups can
/// be cut in pieces, and so leave no worker idle.
int64_t rotating_parts(const Shape& shape) {
  if (shape.heads == 0) return 1;
  const auto columns = static_cast<int64_t>(shape.columns.size());
  return parts_of_least(shape.group, shape.group, true, [&](int64_t parts) {
    const double rounds = parts == 1
                              ? std::max(shape.heads * static_cast<double>(columns) / kWave, 1.0)
                              : std::ceil(shape.heads * static_cast<double>(parts) /
                                          static_cast<double>(kWave / columns));
    const double each = static_cast<double>(shape.q_tiles * (shape.group / parts)) + kChain +
                        (parts > 1 ? kShare : 0);
    return rounds * each;
  });
}

bool rotates(const Shape& shape) {
  const auto columns = static_cast<int64_t>(shape.columns.size());
  if (!shape.full || columns < kLeastOfGroups || columns > kMostRotating) return false;
  if (shape.q_tiles < columns) return false;  // several chains would start at one row
  // With one query tile for each KV tile, a chain is one visit behind the next: too near to hide
  // the hand-off. Through a group chains of many KV tiles are pieces, which keep no such distance,
  // and where few heads run together idle workers cost more.
  const bool apart = shape.q_tiles >= 2 * columns - 1;
  if (columns >= kLeastRotating) return shape.group > 1 || apart;
  // Of more queries than keys few chains would be long: parts of the group are more.
  return shape.group > 1 && (apart || rotating_parts(shape) > 1) && shape.q_tiles <= 2 * columns;
}

bool is_skewed(const Shape& shape) {
  return !shape.starts_together() &&
         static_cast<double>(shape.longest_column) * static_cast<double>(shape.columns.size()) >=
             kSkewed * static_cast<double>(shape.visits);
}

bool walks_chunks(const Shape& shape) {
  const int64_t tiles = kChunkRows * shape.q_tiles / std::max<int64_t>(shape.rows, 1);
  return shape.group >= kChunkGroup && tiles >= kChunkTiles &&
         shape.longest_column >= kChunks * tiles && shape.starts_together() && !shape.gaps;
}

bool walks_alone(const Shape& shape) {
  const int64_t seen = shape.visits * shape.rows;  // rows that see a KV tile, times all tiles
  return shape.group > 1 && shape.group <= kSplitGroup && shape.starts_together() &&
         seen >= kSplitRows * static_cast<int64_t>(shape.columns.size()) * shape.q_tiles;
}

constexpr std::array kRules{
    OrderRule{
        "rotating",
        "every query tile visits every KV tile. 12 to 64 KV tiles R and as many query tiles, "
        "without a group at least 2 R - 1. With a group also 4 to 11, and 2 R - 1 or 2 R query "
        "tiles",
        "chains that each start at another row never wait in the same one", rotates,
        [](const Shape& shape) { return in_parts("shift", shape, rotating_parts(shape)); }},
    OrderRule{
        "chunks",
        "groups of 4 or more, query tiles of 64 rows; some KV tile is seen from 16,384 rows, "
        "most are last seen from one query tile, and rows have no gaps (causal, prefixes, full)",
        "the rows that a chain walks through the group stay in L2, and ranks that share a "
        "sequence wait for additions alone; from the diagonal on, no short chain waits for a "
        "long one in every query head",
        walks_chunks,
        [](const Shape&) { return fmt::format("right_to_left/rows:{}", kChunkRows); }},
    OrderRule{"gaps",
              "query tiles that see a KV tile come in four stretches or more, in the mean "
              "(block-sparse masks)",
              "a matching of KV tiles and rows, in which no chain waits for another; chains of one "
              "query head are alike in all",
              [](const Shape& shape) { return shape.gaps; },
              [](const Shape& shape) -> std::string {
                return shape.group > 1 ? "matched/split" : "matched";
              }},
    OrderRule{"skewed",
              "some KV tile has at least 2.5 times as many visits as the mean, and most start at "
              "other query tiles (a question that all answers share, global tokens)",
              "parts only where chains are long: parts of short ones wait for each other",
              is_skewed,
              [](const Shape& shape) {
                // No other head fills the time in which short chains of a group wait for long ones.
                if (shape.heads > 0 && shape.heads <= kFewest)
                  return in_parts("descending", shape, shape.group);
                return descending(shape, true);
              }},
    OrderRule{
        "alone",
        "groups of 2 to 16; most KV tiles are last seen from one query tile, and a KV tile is "
        "seen from 1,536 rows, in the mean",
        "a chain that walks several query heads waits in each for longer ones", walks_alone,
        [](const Shape&) -> std::string { return "descending/split"; }},
    OrderRule{"descending", "all others",
              "short chains come last, and parts of a group end before one long chain does",
              [](const Shape&) { return true; },
              [](const Shape& shape) { return descending(shape, false); }}};

}  // namespace

Shape::Shape(const TileMap& tiles, int32_t group)
    : group(group), rows(tiles.q_edges.back()), q_tiles(tiles.q_tiles()) {
  std::vector<int64_t> ends(q_tiles);
  for (int32_t j = 0; j < tiles.kv_tiles(); ++j) {
    const auto column = tiles.column(j);
    if (column.empty()) continue;
    columns.push_back(count_tiles(column));
    visits += columns.back();
    longest_column = std::max(longest_column, columns.back());
    alike = std::max(alike, ++ends[column.back().last - 1]);
  }
  for (int32_t q = 0; q < tiles.q_tiles(); ++q)
    longest_row = std::max(longest_row, count_tiles(tiles.row(q)));
  full = visits == int64_t{tiles.q_tiles()} * tiles.kv_tiles();
  gaps = tiles.has_gaps();
}

std::span<const OrderRule> order_rules() { return kRules; }

std::string auto_order(Pass pass, const TileMap& tiles, int32_t group, int64_t visits,
                       std::span<const OrderRule> rules) {
  // One order whatever the numbers of queries and keys: a row decoded alone has the bits that it
  // has in training.
  if (pass == Pass::forward) return "descending";
  Shape shape(tiles, group);
  if (shape.visits == 0) return "descending";
  shape.heads = static_cast<double>(visits) / static_cast<double>(shape.visits);
  return std::ranges::find_if(rules, [&](const OrderRule& rule) { return rule.applies(shape); })
      ->order(shape);
}

int64_t best_parts(const Shape& shape, bool even) {
  const double copies =
      std::max(kTokens / static_cast<double>(std::max<int64_t>(shape.rows, 1)), 1.0);
  std::vector<double> heads{shape.heads};
  if (shape.heads == 0)
    heads = {kFewHeads * copies, std::sqrt(kFewHeads * kManyHeads) * copies, kManyHeads * copies};
  // Under "/even:N" the long KV tiles alone are cut, and their parts may be unequal. More than four
  // that are more than half the group wait in each other's rows.
  const int64_t most = even ? std::max<int64_t>(shape.group / 2, 4) : shape.group;
  return parts_of_least(shape.group, most, !even, [&](int64_t parts) {
    double time = 1;  // the product over the numbers of heads: each counts by its ratio
    for (const double count : heads) time *= time_of(shape, parts, even, count);
    return time;
  });
}

int64_t rotating_tiles(int64_t kv_tiles) {
  constexpr int64_t kMost = kWave / 2, kLeast = kWave / 4;
  if (kv_tiles <= kMost) return kv_tiles;
  for (int64_t chunks = (kv_tiles + kMost - 1) / kMost; chunks * kLeast <= kv_tiles; ++chunks) {
    const int64_t tiles = (kv_tiles + chunks - 1) / chunks;
    if (8 * (kWave / tiles) * tiles >= 7 * kWave) return tiles;
  }
  return kMost;
}

int64_t even_parts(int64_t group, int64_t parts, int64_t visits, int64_t most) {
  const auto longest = [&](int64_t of) { return (group + of - 1) / of; };  // query heads of a chain
  int64_t least = 1;
  while (least < parts && visits * longest(least) > most * longest(parts)) ++least;
  return least;
}

}  // namespace verbatim::contract
