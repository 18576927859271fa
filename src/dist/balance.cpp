#include "dist/balance.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

namespace verbatim::dist {
namespace {

constexpr double kEven = 1.05;       // the heaviest rank over the mean: good enough
constexpr double kGain = 1e-3;       // what a move takes off the heaviest rank at least
constexpr double kWorthKeys = 1024;  // that a row sees, or it is visited sooner than sent
constexpr double kNarrow = 0.25;     // keys that a row sees over rows of the unit, below: a window

class Balancer {
 public:
  Balancer(std::span<const Unit> units, std::span<const std::vector<int64_t>> edges, int32_t world)
      : units_(units),
        edges_(edges),
        held_(units.size()),
        visits_(units.size()),
        units_of_(static_cast<size_t>(world)),
        loads_(static_cast<size_t>(world)),
        free_(static_cast<size_t>(world)),
        ranges_(static_cast<size_t>(world)) {}

  Balance make(bool by_head) {
    hold();
    if (by_head) even_out();
    Balance balance;
    for (auto& each : ranges_) balance.held.emplace_back(std::move(each));
    for (size_t u = 0; u < units_.size(); ++u) {
      put_together(u);
      add_moved(u, balance.moved);
    }
    balance.heaviest = std::ranges::max(loads_);
    balance.area = std::accumulate(loads_.begin(), loads_.end(), 0.0);
    for (const Unit& unit : units_) {
      const auto rows = static_cast<double>(rows_of(unit.range));
      for (const double area : unit.areas)
        if (area < kNarrow * rows * rows) balance.narrow += area;
    }
    return balance;
  }

 private:
  static int64_t rows_of(const RowRange& range) { return range.rows.end - range.rows.begin; }
  static bool is_worth_sending(const Unit& unit, double area) {
    return area >= kWorthKeys * static_cast<double>(rows_of(unit.range));
  }
  double area(size_t u) const {
    return std::accumulate(units_[u].areas.begin(), units_[u].areas.end(), 0.0);
  }

  void hold() {
    int64_t rows = 0;
    for (const Unit& unit : units_) rows += rows_of(unit.range);
    const auto world = static_cast<int64_t>(free_.size());
    std::ranges::fill(free_, (rows + world - 1) / world);
    std::vector<size_t> by_area(units_.size());
    std::iota(by_area.begin(), by_area.end(), size_t{0});
    std::ranges::stable_sort(by_area, std::greater{}, [&](size_t u) { return area(u); });
    for (const size_t u : by_area) {
      const int64_t all = rows_of(units_[u].range);
      int32_t lightest = -1;
      for (int32_t r = 0; r < std::ssize(free_); ++r)
        if (free_[r] >= all && (lightest < 0 || loads_[r] < loads_[lightest])) lightest = r;
      if (lightest >= 0) {
        hold(u, units_[u].range.rows, lightest);
      } else {
        hold_parts(u);
      }
      const int32_t most = std::ranges::max_element(held_[u], {}, [](const auto& part) {
                             return part.second;
                           })->first;
      visits_[u].assign(units_[u].areas.size(), most);
      units_of_[most].push_back(u);
      loads_[most] += area(u);
    }
  }

  /// Each part as large as the rank that may hold most allows.
  void hold_parts(size_t u) {
    const auto& [batch, rows] = units_[u].range;
    const std::vector<int64_t>& edges = edges_[static_cast<size_t>(batch)];
    for (int64_t begin = rows.begin; begin < rows.end;) {
      const auto r = static_cast<int32_t>(std::ranges::max_element(free_) - free_.begin());
      auto edge = std::ranges::upper_bound(edges, begin + std::max<int64_t>(free_[r], 0));
      if (edge != edges.begin() && *std::prev(edge) > begin) --edge;  // else one cell too many
      const int64_t end = edge == edges.end() ? rows.end : std::min(*edge, rows.end);
      hold(u, {begin, end}, r);
      begin = end;
    }
  }

  void hold(size_t u, Interval rows, int32_t r) {
    ranges_[r].push_back({units_[u].range.batch, rows});
    held_[u][r] += rows.end - rows.begin;
    free_[r] -= rows.end - rows.begin;
  }

  struct Move {
    size_t unit = 0, head = 0;
    int32_t to = -1;
    double value = 0;  // area off the heaviest rank by rows that are sent
  };

  void even_out() {
    const double mean =
        std::accumulate(loads_.begin(), loads_.end(), 0.0) / static_cast<double>(loads_.size());
    for (;;) {
      const auto heavy = static_cast<int32_t>(std::ranges::max_element(loads_) - loads_.begin());
      if (loads_[heavy] <= kEven * mean) return;
      const Move best = best_move(heavy);
      if (best.to < 0) return;
      const double area = units_[best.unit].areas[best.head];
      visits_[best.unit][best.head] = best.to;
      loads_[heavy] -= area;
      loads_[best.to] += area;
      std::vector<size_t>& own = units_of_[best.to];
      if (std::ranges::find(own, best.unit) == own.end()) own.push_back(best.unit);
    }
  }

  /// Of each unit, the last of the heads that are alike and that a rank visits, to any other.
  Move best_move(int32_t heavy) const {
    Move best;
    for (const size_t u : units_of_[heavy]) {
      const std::vector<double>& areas = units_[u].areas;
      double tried = -1;
      for (size_t head = areas.size(); head-- > 0;) {
        if (visits_[u][head] != heavy || areas[head] == tried) continue;
        tried = areas[head];
        if (is_worth_sending(units_[u], tried)) try_move(heavy, u, head, best);
      }
    }
    return best;
  }

  void try_move(int32_t heavy, size_t u, size_t head, Move& best) const {
    const double area = units_[u].areas[head];
    for (int32_t r = 0; r < std::ssize(loads_); ++r) {
      const double gain = std::min(area, loads_[heavy] - loads_[r] - area);
      if (r == heavy || gain < kGain * loads_[heavy]) continue;
      const auto held = held_[u].find(r);
      const int64_t sent = rows_of(units_[u].range) - (held == held_[u].end() ? 0 : held->second);
      const double value = gain / static_cast<double>(sent + 1);
      if (value > best.value) best = {u, head, r, value};
    }
  }

  /// Heads of one rank lie behind each other, as far as they are alike.
  void put_together(size_t u) {
    const std::vector<double>& areas = units_[u].areas;
    for (size_t begin = 0, end = 0; begin < areas.size(); begin = end) {
      while (end < areas.size() && areas[end] == areas[begin]) ++end;
      std::sort(visits_[u].begin() + static_cast<ptrdiff_t>(begin),
                visits_[u].begin() + static_cast<ptrdiff_t>(end));
    }
  }

  /// Heads behind each other that one rank visits which does not hold all of the unit.
  void add_moved(size_t u, std::vector<MovedHeads>& moved) const {
    const std::vector<int32_t>& ranks = visits_[u];
    const int64_t rows = rows_of(units_[u].range);
    for (size_t begin = 0, end = 0; begin < ranks.size(); begin = end) {
      while (end < ranks.size() && ranks[end] == ranks[begin]) ++end;
      const auto held = held_[u].find(ranks[begin]);
      if (held != held_[u].end() && held->second == rows) continue;
      moved.push_back({units_[u].range,
                       {static_cast<int64_t>(begin), static_cast<int64_t>(end)},
                       ranks[begin]});
    }
  }

  std::span<const Unit> units_;
  std::span<const std::vector<int64_t>> edges_;
  std::vector<std::map<int32_t, int64_t>> held_;  // by unit: rows by rank
  std::vector<std::vector<int32_t>> visits_;      // by unit and KV head: the rank
  std::vector<std::vector<size_t>> units_of_;     // by rank: of which it visits, or visited, heads
  std::vector<double> loads_;                     // by rank
  std::vector<int64_t> free_;                     // rows that a rank may hold yet
  std::vector<std::vector<RowRange>> ranges_;     // by rank
};

}  // namespace

Balance balance(std::span<const Unit> units, std::span<const std::vector<int64_t>> edges,
                int32_t world, bool by_head) {
  return Balancer(units, edges, world).make(by_head);
}

}  // namespace verbatim::dist
