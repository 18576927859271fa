// Which rank holds which positions: cells between common tile edges, dealt to ranks.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "core/names.h"
#include "schedule/row_chunks.h"
#include "verbatim/dist.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

constexpr int32_t kMostRanks = 4096;
// Ranks that hold whole chunks of rows wait for no sums: worth a heaviest rank so much heavier.
constexpr double kUneven = 3;
// Whole chunks need not lie behind each other where that makes the heaviest rank so much lighter.
constexpr double kScattered = 1.05;

constexpr std::array kShards{
    ShardInfo{"contiguous", "ranks take equal stretches, one after another"},
    ShardInfo{"zigzag", "two stretches a rank, one from the head and one from the tail"},
    ShardInfo{"document", "as zigzag in every document; documents shorter than that in turn"},
    ShardInfo{"balanced", "stretches one after another with equal areas of the mask"},
};

/// Positions that lie in one tile of either pass.
struct Cell {
  RowRange range;
  int64_t document;
  double weight;
};

using Edges = std::vector<int64_t>;

Edges common(const Edges& a, const Edges& b) {
  Edges both;
  std::ranges::set_intersection(a, b, std::back_inserter(both));
  return both;
}

/// Which of `count` stretches of equal weight the middle of each cell lies in.
std::vector<int32_t> stretches(std::span<const Cell> cells, int32_t count) {
  double total = 0, before = 0;
  for (const Cell& cell : cells) total += cell.weight;
  std::vector<int32_t> numbers;
  for (const Cell& cell : cells) {
    const double middle = total > 0 ? (before + cell.weight / 2) / total : 0;
    numbers.push_back(std::min(static_cast<int32_t>(middle * count), count - 1));
    before += cell.weight;
  }
  return numbers;
}

/// The number of the stretch of each cell, where none of `count` weighs more than `most`, each
/// taking all that it may; nothing if there would be more.
std::vector<int32_t> fill(std::span<const Cell> cells, int32_t count, double most) {
  std::vector<int32_t> numbers;
  int32_t number = 0;
  double weight = 0;
  for (const Cell& cell : cells) {
    if (weight > 0 && weight + cell.weight > most) {
      ++number;
      weight = 0;
    }
    weight += cell.weight;
    if (number == count || weight > most) return {};
    numbers.push_back(number);
  }
  return numbers;
}

/// Stretches of which the heaviest is as light as can be.
std::vector<int32_t> even_stretches(std::span<const Cell> cells, int32_t count) {
  double total = 0;
  for (const Cell& cell : cells) total += cell.weight;
  std::vector<int32_t> numbers = fill(cells, count, total);
  double low = total / count, high = total;
  while (high - low > total * 1e-6) {
    const double most = (low + high) / 2;
    std::vector<int32_t> fits = fill(cells, count, most);
    (fits.empty() ? low : high) = most;
    if (!fits.empty()) numbers = std::move(fits);
  }
  return numbers;
}

/// Cells that need not lie behind each other: the heaviest first, each to the lightest rank that
/// has fewer than its share of them.
std::vector<int32_t> even_ranks(std::span<const Cell> cells, int32_t world) {
  const size_t most = (cells.size() + world - 1) / world;
  std::vector<size_t> by_weight(cells.size());
  std::iota(by_weight.begin(), by_weight.end(), size_t{0});
  std::ranges::stable_sort(by_weight, std::greater{}, [&](size_t c) { return cells[c].weight; });
  std::set<std::pair<double, int32_t>> open;  // weight and rank
  for (int32_t rank = 0; rank < world; ++rank) open.insert({0, rank});
  std::vector<size_t> counts(static_cast<size_t>(world));
  std::vector<int32_t> ranks(cells.size());
  for (const size_t c : by_weight) {
    const auto [weight, rank] = *open.begin();
    open.erase(open.begin());
    ranks[c] = rank;
    if (++counts[rank] < most) open.insert({weight + cells[c].weight, rank});
  }
  return ranks;
}

/// Stretch r and, from the tail, the other of 2 * world.
int32_t zigzag(int32_t stretch, int32_t world) {
  return stretch < world ? stretch : 2 * world - 1 - stretch;
}

/// The rank of each cell.
std::vector<int32_t> assign(std::span<const Cell> cells, const std::string& shard, int32_t world) {
  if (shard == "contiguous") return stretches(cells, world);
  if (shard == "balanced") return even_stretches(cells, world);
  std::vector<int32_t> ranks;
  if (shard == "zigzag") {
    for (const int32_t stretch : stretches(cells, 2 * world))
      ranks.push_back(zigzag(stretch, world));
    return ranks;
  }
  int32_t turn = 0;
  for (size_t begin = 0; begin < cells.size();) {
    size_t end = begin;
    while (end < cells.size() && cells[end].document == cells[begin].document &&
           cells[end].range.batch == cells[begin].range.batch)
      ++end;
    const auto document = cells.subspan(begin, end - begin);
    if (document.size() < 2 * static_cast<size_t>(world)) {
      for (size_t c = 0; c < document.size(); ++c) ranks.push_back(turn++ % world);
    } else {
      for (const int32_t stretch : stretches(document, 2 * world))
        ranks.push_back(zigzag(stretch, world));
    }
    begin = end;
  }
  return ranks;
}

struct DealtCells {
  std::vector<HeldRows> held;  // by rank
  double heaviest = 0;         // of the ranks
};

DealtCells deal(std::span<const Cell> cells, std::span<const int32_t> ranks, int32_t world) {
  std::vector<std::vector<RowRange>> ranges(static_cast<size_t>(world));
  std::vector<double> weights(static_cast<size_t>(world));
  for (size_t c = 0; c < cells.size(); ++c) {
    ranges[ranks[c]].push_back(cells[c].range);
    weights[ranks[c]] += cells[c].weight;
  }
  DealtCells dealt{{}, std::ranges::max(weights)};
  for (auto& each : ranges) dealt.held.emplace_back(std::move(each));
  return dealt;
}

/// Of the rows between edges that lie behind each other.
using Weights = std::vector<double>;

Weights lengths(int64_t, const Edges& at) {
  Weights all;
  for (size_t e = 1; e < at.size(); ++e) all.push_back(static_cast<double>(at[e] - at[e - 1]));
  return all;
}

Weights areas(const HeadMask& mask, const Edges& at) {
  Weights all(at.size() - 1);
  for (const Slice& slice : mask.slices) {
    const auto first = std::ranges::upper_bound(at, slice.q_begin) - at.begin() - 1;
    for (auto e = static_cast<size_t>(first); e < all.size() && at[e] < slice.q_end; ++e) {
      Slice part = slice;
      part.q_begin = std::max(slice.q_begin, at[e]);
      part.q_end = std::min(slice.q_end, at[e + 1]);
      all[e] += static_cast<double>(part.area());
    }
  }
  return all;
}

/// Cells of one axis, of all batch entries. `edges(b)` are those of an entry, `breaks(b)` the
/// starts of its documents but the first, `weigh(b, edges)` what counts.
std::vector<Cell> make_cells(int64_t batch, const std::function<Edges(int64_t)>& edges,
                             const std::function<Edges(int64_t)>& breaks,
                             const std::function<Weights(int64_t, const Edges&)>& weigh) {
  std::vector<Cell> cells;
  for (int64_t b = 0; b < batch; ++b) {
    const Edges at = edges(b), starts = breaks(b);
    const Weights weights = weigh(b, at);
    for (size_t e = 1; e < at.size(); ++e) {
      const auto document = std::ranges::upper_bound(starts, at[e - 1]) - starts.begin();
      cells.push_back({{b, {at[e - 1], at[e]}}, document, weights[e - 1]});
    }
  }
  return cells;
}

}  // namespace

std::span<const ShardInfo> shards() { return kShards; }

Sharding make_sharding(const Plan& forward, const Plan& backward, const Mask& mask,
                       const DistOptions& options) {
  if (options.world < 1 || options.world > kMostRanks)
    throw Error(ErrorCode::invalid_argument, "dist", "there cannot be so many ranks",
                {"world", fmt::to_string(options.world), fmt::format("1 to {}", kMostRanks),
                 fmt::to_string(std::clamp(options.world, 1, kMostRanks))});
  Sharding sharding;
  sharding.name = !options.shard.empty()           ? options.shard
                  : options.strategy == "balanced" ? "balanced"
                                                   : "zigzag";
  std::vector<std::string> names;
  for (const ShardInfo& info : kShards) names.emplace_back(info.name);
  if (std::ranges::find(names, sharding.name) == names.end())
    throw Error(ErrorCode::invalid_argument, "dist", "no such sharding",
                {"shard", "'" + sharding.name + "'", fmt::format("{}", fmt::join(names, ", ")),
                 nearest_name(sharding.name, names)});

  const Problem& problem = forward.problem;
  const bool alike = problem.q_len == problem.kv_len;
  // By the first head of an entry; tiles of others may reach over the edges.
  const auto tiles = [&](const Plan& plan, int64_t b) -> const TileMap& {
    return *plan.order(static_cast<int32_t>(b * problem.kv_heads)).tiles;
  };
  const auto kv_edges = [&](int64_t b) {
    return common(tiles(forward, b).kv_edges, tiles(backward, b).kv_edges);
  };
  const auto q_edges = [&](int64_t b) {
    const Edges edges = common(tiles(forward, b).q_edges, tiles(backward, b).q_edges);
    return alike ? common(edges, kv_edges(b)) : edges;
  };
  const auto chunk_edges = [&](int64_t b) {
    return common(q_edges(b),
                  row_chunk_edges(backward.order(static_cast<int32_t>(b * problem.kv_heads))));
  };
  std::map<std::pair<int32_t, Edges>, Weights> known;  // by head mask
  const auto area = [&](int64_t b, const Edges& at) {
    Weights sum(at.size() - 1);
    for (int64_t h = 0; h < problem.kv_heads; ++h) {
      Weights& own = known[{mask.variant(b, h), at}];
      if (own.empty()) own = areas(mask.head(b, h), at);
      std::ranges::transform(sum, own, sum.begin(), std::plus{});
    }
    return sum;
  };
  const bool by_area = sharding.name == "balanced";
  const auto q_breaks = [&](int64_t b) { return mask.head(b, 0).q_breaks; };
  const auto kv_breaks = [&](int64_t b) { return mask.head(b, 0).k_breaks; };
  const auto deal_q = [&](const std::function<Edges(int64_t)>& edges, bool scattered) {
    std::vector<Cell> cells =
        make_cells(problem.batch, edges, q_breaks,
                   by_area ? std::function<Weights(int64_t, const Edges&)>(area) : lengths);
    if (std::ranges::all_of(cells, [](const Cell& cell) { return cell.weight == 0; }))
      for (Cell& cell : cells)
        cell.weight = static_cast<double>(cell.range.rows.end - cell.range.rows.begin);
    DealtCells dealt = deal(cells, assign(cells, sharding.name, options.world), options.world);
    if (by_area && scattered) {
      DealtCells even = deal(cells, even_ranks(cells, options.world), options.world);
      if (dealt.heaviest > kScattered * even.heaviest) dealt = std::move(even);
    }
    return dealt;
  };
  DealtCells q = deal_q(q_edges, false);
  if (std::ranges::any_of(backward.orders,
                          [](const auto& order) { return !order->row_chunks.empty(); }))
    if (DealtCells chunks = deal_q(chunk_edges, true); chunks.heaviest <= kUneven * q.heaviest)
      q = std::move(chunks);
  sharding.q = std::move(q.held);
  sharding.kv = sharding.q;
  if (!alike) {
    const std::vector<Cell> cells = make_cells(problem.batch, kv_edges, kv_breaks, lengths);
    sharding.kv = deal(cells, assign(cells, sharding.name, options.world), options.world).held;
  }
  return sharding;
}

}  // namespace verbatim
