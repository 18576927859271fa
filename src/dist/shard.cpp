// Which rank holds which positions: cells between common tile edges, dealt to ranks.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <map>

#include "core/names.h"
#include "verbatim/dist.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

constexpr int32_t kMostRanks = 4096;

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

/// Stretch r and, from the tail, the other of 2 * world.
int32_t zigzag(int32_t stretch, int32_t world) {
  return stretch < world ? stretch : 2 * world - 1 - stretch;
}

/// The rank of each cell.
std::vector<int32_t> assign(std::span<const Cell> cells, const std::string& shard, int32_t world) {
  if (shard == "contiguous" || shard == "balanced") return stretches(cells, world);
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

std::vector<HeldRows> deal(std::span<const Cell> cells, const std::string& shard, int32_t world) {
  const std::vector<int32_t> ranks = assign(cells, shard, world);
  std::vector<std::vector<RowRange>> ranges(static_cast<size_t>(world));
  for (size_t c = 0; c < cells.size(); ++c)
    ranges[static_cast<size_t>(ranks[c])].push_back(cells[c].range);
  std::vector<HeldRows> held;
  for (auto& each : ranges) held.emplace_back(std::move(each));
  return held;
}

/// Cells of one axis, of all batch entries. `edges(b)` are those of an entry, `breaks(b)` the
/// starts of its documents but the first, `weigh(b, rows)` what counts.
std::vector<Cell> make_cells(int64_t batch, const std::function<Edges(int64_t)>& edges,
                             const std::function<Edges(int64_t)>& breaks,
                             const std::function<double(int64_t, Interval)>& weigh) {
  std::vector<Cell> cells;
  for (int64_t b = 0; b < batch; ++b) {
    const Edges at = edges(b), starts = breaks(b);
    for (size_t e = 1; e < at.size(); ++e) {
      const Interval rows{at[e - 1], at[e]};
      const auto document = std::ranges::upper_bound(starts, rows.begin) - starts.begin();
      cells.push_back({{b, rows}, document, weigh(b, rows)});
    }
  }
  return cells;
}

double length(int64_t, Interval rows) { return static_cast<double>(rows.end - rows.begin); }

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
  const auto q_edges = [&](int64_t b) {
    return common(tiles(forward, b).q_edges, tiles(backward, b).q_edges);
  };
  const auto kv_edges = [&](int64_t b) {
    return common(tiles(forward, b).kv_edges, tiles(backward, b).kv_edges);
  };
  std::map<std::tuple<int32_t, int64_t>, double> areas;  // by mask and first row
  const auto area = [&](int64_t b, Interval rows) {
    double sum = 0;
    for (int64_t h = 0; h < problem.kv_heads; ++h) {
      const auto [at, fresh] = areas.try_emplace({mask.variant(b, h), rows.begin});
      if (fresh) {
        const HeadMask& head = mask.head(b, h);
        at->second = static_cast<double>(head.crop(rows.begin, rows.end, 0, head.kv_len).area());
      }
      sum += at->second;
    }
    return sum;
  };
  const bool by_area = sharding.name == "balanced";
  const auto q_breaks = [&](int64_t b) { return mask.head(b, 0).q_breaks; };
  const auto kv_breaks = [&](int64_t b) { return mask.head(b, 0).k_breaks; };
  const auto joint = [&](int64_t b) { return common(q_edges(b), kv_edges(b)); };
  std::vector<Cell> cells =
      make_cells(problem.batch, alike ? std::function<Edges(int64_t)>(joint) : q_edges, q_breaks,
                 by_area ? std::function<double(int64_t, Interval)>(area) : length);
  if (std::ranges::all_of(cells, [](const Cell& cell) { return cell.weight == 0; }))
    for (Cell& cell : cells) cell.weight = length(0, cell.range.rows);
  sharding.q = deal(cells, sharding.name, options.world);
  sharding.kv = alike ? sharding.q
                      : deal(make_cells(problem.batch, kv_edges, kv_breaks, length), sharding.name,
                             options.world);
  return sharding;
}

}  // namespace verbatim
