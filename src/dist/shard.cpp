// Which rank holds which positions: cells between common tile edges, dealt to ranks.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <map>
#include <utility>

#include "core/names.h"
#include "dist/balance.h"
#include "dist/strategy.h"
#include "schedule/row_chunks.h"
#include "verbatim/dist.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

// Ranks that visit whole units wait for no sums: worth a heaviest rank less than so much heavier,
// and under windows, whose short chains seldom cross ranks.
constexpr double kUneven = 4, kUnevenWindows = 1.3;
// ... but for one rank that visits almost everything.
constexpr double kShared = 0.9;

constexpr std::array kShards{
    ShardInfo{"contiguous", "ranks take equal stretches, one after another"},
    ShardInfo{"zigzag", "two stretches a rank, one from the head and one from the tail"},
    ShardInfo{"document", "as zigzag in every document; documents shorter than that in turn"},
    ShardInfo{"balanced", "as many rows for each, with about as much of the mask to visit"},
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

class Sharder {
 public:
  Sharder(const Plan& forward, const Plan& backward, const Mask& mask, const std::string& name,
          const dist::Grid& grid)
      : forward_(forward),
        backward_(backward),
        mask_(mask),
        problem_(forward.problem),
        name_(name),
        grid_(grid),
        by_area_(name == "balanced") {}

  /// Rows are dealt to groups of ranks that share heads, then those of a group to its ranks.
  Sharding make() {
    Sharding sharding{name_, {}, {}};
    const auto q_edges = [this](int64_t b) { return this->q_edges(b); };
    const auto chunk_edges = [this](int64_t b) { return this->chunk_edges(b); };
    DealtCells q = deal_queries(q_edges);
    if (by_area_) {
      dist::Balance even = balance_units();
      const double most = 2 * even.narrow > even.area ? kUnevenWindows : kUneven;
      if (even.heaviest < std::min(most * q.heaviest, kShared * even.area)) {
        q.held = std::move(even.held);
        sharding.moved = std::move(even.moved);
        for (MovedHeads& moved : sharding.moved) moved.rank = grid_.rank(moved.rank, 0);
      }
    } else if (std::ranges::any_of(backward_.orders,
                                   [](const auto& order) { return !order->row_chunks.empty(); })) {
      if (DealtCells chunks = deal_queries(chunk_edges); chunks.heaviest < kUneven * q.heaviest)
        q = std::move(chunks);
    }
    sharding.kv = sharding.q = split(q.held, q_edges);
    if (!alike()) {
      const auto edges = [this](int64_t b) { return kv_edges(b); };
      const auto breaks = [this](int64_t b) { return mask_.head(b, 0).k_breaks; };
      const std::vector<Cell> cells = make_cells(problem_.batch, edges, breaks, lengths);
      sharding.kv = split(deal(cells, assign(cells, name_, grid_.outer), grid_.outer).held, edges);
    }
    return sharding;
  }

 private:
  using EdgesOf = std::function<Edges(int64_t)>;  // of a batch entry

  bool alike() const { return problem_.q_len == problem_.kv_len; }
  // By the first head of an entry; tiles of others may reach over the edges.
  const HeadOrder& order(const Plan& plan, int64_t b) const {
    return plan.order(static_cast<int32_t>(b * problem_.kv_heads));
  }
  Edges kv_edges(int64_t b) const {
    return common(order(forward_, b).tiles->kv_edges, order(backward_, b).tiles->kv_edges);
  }
  Edges q_edges(int64_t b) const {
    const Edges edges =
        common(order(forward_, b).tiles->q_edges, order(backward_, b).tiles->q_edges);
    return alike() ? common(edges, kv_edges(b)) : edges;
  }
  Edges chunk_edges(int64_t b) const {
    return common(q_edges(b), row_chunk_edges(order(backward_, b)));
  }

  const Weights& head_areas(int64_t b, int64_t h, const Edges& at) {
    Weights& own = known_[{mask_.variant(b, h), at}];
    if (own.empty()) own = areas(mask_.head(b, h), at);
    return own;
  }
  Weights all_areas(int64_t b, const Edges& at) {
    Weights sum(at.size() - 1);
    for (int64_t h = 0; h < problem_.kv_heads; ++h)
      std::ranges::transform(sum, head_areas(b, h, at), sum.begin(), std::plus{});
    return sum;
  }

  DealtCells deal_queries(const EdgesOf& edges) {
    const auto weigh = [this](int64_t b, const Edges& at) {
      return by_area_ ? all_areas(b, at) : lengths(b, at);
    };
    std::vector<Cell> cells = make_cells(
        problem_.batch, edges, [this](int64_t b) { return mask_.head(b, 0).q_breaks; }, weigh);
    if (std::ranges::all_of(cells, [](const Cell& cell) { return cell.weight == 0; }))
      for (Cell& cell : cells)
        cell.weight = static_cast<double>(cell.range.rows.end - cell.range.rows.begin);
    return deal(cells, assign(cells, name_, grid_.outer), grid_.outer);
  }

  dist::Balance balance_units() {
    std::vector<dist::Unit> units;
    std::vector<Edges> cuts;
    for (int64_t b = 0; b < problem_.batch; ++b) {
      const Edges at = chunk_edges(b);
      const size_t first = units.size();
      for (size_t e = 1; e < at.size(); ++e)
        units.emplace_back(dist::Unit{{b, {at[e - 1], at[e]}}, {}});
      for (int64_t h = 0; h < problem_.kv_heads; ++h) {
        const Weights& own = head_areas(b, h, at);
        for (size_t u = first; u < units.size(); ++u) units[u].areas.push_back(own[u - first]);
      }
      cuts.push_back(q_edges(b));
    }
    return dist::balance(units, cuts, problem_.group(), grid_.outer,
                         grid_.inner == 1 && grid_.route == dist::Route::needed);
  }

  /// Equal shares of what groups hold, from the head and from the tail.
  std::vector<HeldRows> split(std::vector<HeldRows> groups, const EdgesOf& edges) const {
    if (grid_.inner == 1) return groups;
    std::vector<Edges> of_entry;
    for (int64_t b = 0; b < problem_.batch; ++b) of_entry.push_back(edges(b));
    std::vector<HeldRows> ranks;
    for (const HeldRows& group : groups) {
      std::vector<Cell> cells;
      for (const auto& [batch, rows] : group.ranges()) {
        const Edges& at = of_entry[batch];
        for (auto begin = rows.begin; begin < rows.end;) {
          const auto end = std::min(*std::ranges::upper_bound(at, begin), rows.end);
          cells.push_back({{batch, {begin, end}}, 0, static_cast<double>(end - begin)});
          begin = end;
        }
      }
      const char* how = name_ == "contiguous" ? "contiguous" : "zigzag";
      for (HeldRows& held : deal(cells, assign(cells, how, grid_.inner), grid_.inner).held)
        ranks.push_back(std::move(held));
    }
    return ranks;
  }

  const Plan &forward_, &backward_;
  const Mask& mask_;
  const Problem& problem_;
  const std::string& name_;
  const dist::Grid& grid_;
  bool by_area_;
  std::map<std::pair<int32_t, Edges>, Weights> known_;  // areas, by head mask
};

}  // namespace

std::span<const ShardInfo> shards() { return kShards; }

Sharding make_sharding(const Plan& forward, const Plan& backward, const Mask& mask,
                       const DistOptions& options) {
  if (options.world < 1 || options.world > kMostRanks)
    throw Error(ErrorCode::invalid_argument, "dist", "there cannot be so many ranks",
                {"world", fmt::to_string(options.world), fmt::format("1 to {}", kMostRanks),
                 fmt::to_string(std::clamp(options.world, 1, kMostRanks))});
  const std::string name = options.shard.empty() ? "balanced" : options.shard;
  std::vector<std::string> names;
  for (const ShardInfo& info : kShards) names.emplace_back(info.name);
  if (std::ranges::find(names, name) == names.end())
    throw Error(ErrorCode::invalid_argument, "dist", "no such sharding",
                {"shard", "'" + name + "'", fmt::format("{}", fmt::join(names, ", ")),
                 nearest_name(name, names)});
  DistOptions chosen = options;
  const dist::Grid grid = dist::make_grid(forward.problem, chosen);
  return Sharder(forward, backward, mask, name, grid).make();
}

}  // namespace verbatim
