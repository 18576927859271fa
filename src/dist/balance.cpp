#include "dist/balance.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include "dist/deal.h"

namespace verbatim::dist {
namespace {

constexpr double kEven = 1.05;       // the heaviest rank over the mean: good enough
constexpr double kGain = 1e-3;       // what a move takes off the heaviest rank at least
constexpr double kWorthKeys = 1024;  // that a row sees, or it is visited sooner than sent
constexpr double kTaskRows = 128;    // of a task, about
constexpr double kNarrow = 0.25;     // keys that a row sees over rows of the unit, below: a window

class Balancer {
 public:
  Balancer(std::span<const Unit> units, std::span<const std::vector<int64_t>> edges, int64_t group,
           int32_t world)
      : units_(units),
        edges_(edges),
        group_(static_cast<double>(group)),
        held_(units.size()),
        visits_(units.size()),
        heads_on_(units.size()),
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
    std::vector<double> areas(loads_.size());  // by rank
    for (size_t u = 0; u < units_.size(); ++u)
      for (size_t head = 0; head < visits_[u].size(); ++head)
        areas[static_cast<size_t>(visits_[u][head])] += units_[u].areas[head];
    balance.heaviest = std::ranges::max(areas);
    balance.area = std::accumulate(areas.begin(), areas.end(), 0.0);
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
  bool holds(size_t u, int32_t r) const {
    const auto held = held_[u].find(r);
    return held != held_[u].end() && held->second == rows_of(units_[u].range);
  }
  /// What the first head of a unit that is no launch with others adds, in area: while its last
  /// tasks run, other workers have none.
  double launch(size_t u, int32_t r) const {
    if (holds(u, r)) return 0;
    const auto all =
        static_cast<double>(units_[u].areas.size()) * static_cast<double>(rows_of(units_[u].range));
    return kWorkers * kTaskRows * area(u) / (all * group_);
  }
  int32_t heads_on(size_t u, int32_t r) const {
    const auto own = heads_on_[u].find(r);
    return own == heads_on_[u].end() ? 0 : own->second;
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
      heads_on_[u][most] = static_cast<int32_t>(units_[u].areas.size());
      units_of_[most].push_back(u);
      loads_[most] += area(u) + launch(u, most);
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

  /// Heads that are alike, the last of those that a rank visits.
  struct Move {
    size_t unit = 0;
    double area = 0;  // of each
    int32_t heads = 0, to = -1;
    double value = 0;  // off the heaviest rank, by rows that are sent
  };

  void even_out() {
    for (;;) {
      const auto heavy = static_cast<int32_t>(std::ranges::max_element(loads_) - loads_.begin());
      const double all = std::accumulate(loads_.begin(), loads_.end(), 0.0);
      if (loads_[heavy] * static_cast<double>(loads_.size()) <= kEven * all) return;
      const Move best = best_move(heavy);
      if (best.to < 0) return;
      move(heavy, best);
    }
  }

  void move(int32_t heavy, const Move& of) {
    std::vector<int32_t>& ranks = visits_[of.unit];
    for (size_t head = ranks.size(), left = of.heads; left > 0 && head-- > 0;) {
      if (ranks[head] != heavy || units_[of.unit].areas[head] != of.area) continue;
      ranks[head] = of.to;
      --left;
    }
    loads_[heavy] = after(heavy, of, -1);
    loads_[of.to] = after(of.to, of, 1);
    heads_on_[of.unit][heavy] -= of.heads;
    heads_on_[of.unit][of.to] += of.heads;
    std::vector<size_t>& own = units_of_[of.to];
    if (std::ranges::find(own, of.unit) == own.end()) own.push_back(of.unit);
  }

  /// The load of a rank that gives (-1) or gets (1) these heads.
  double after(int32_t r, const Move& of, int32_t sign) const {
    const int32_t before = heads_on(of.unit, r), then = before + sign * of.heads;
    const double launches = (then > 0) - (before > 0);
    return loads_[r] + sign * of.heads * of.area + launches * launch(of.unit, r);
  }

  Move best_move(int32_t heavy) const {
    Move best;
    for (const size_t u : units_of_[heavy]) {
      std::map<double, int32_t> alike;  // by area
      for (size_t head = 0; head < units_[u].areas.size(); ++head)
        if (visits_[u][head] == heavy) ++alike[units_[u].areas[head]];
      for (const auto& [area, heads] : alike)
        if (is_worth_sending(units_[u], area)) try_moves(heavy, {u, area, heads}, best);
    }
    return best;
  }

  /// Of at most so many heads: as many as leave both ranks alike, and one.
  void try_moves(int32_t heavy, Move of, Move& best) const {
    const int32_t most = of.heads;
    const auto rows = rows_of(units_[of.unit].range);
    for (of.to = 0; of.to < std::ssize(loads_); ++of.to) {
      if (of.to == heavy) continue;
      const auto held = held_[of.unit].find(of.to);
      const int64_t sent = rows - (held == held_[of.unit].end() ? 0 : held->second);
      const double half = (loads_[heavy] - loads_[of.to] - launch(of.unit, of.to)) / 2;
      const auto even = static_cast<int32_t>(std::clamp(half / of.area, 1.0, double(most)));
      for (const int32_t heads : {1, even}) {
        of.heads = heads;
        const double gain = loads_[heavy] - std::max(after(heavy, of, -1), after(of.to, of, 1));
        if (gain < kGain * loads_[heavy]) continue;
        of.value = gain / static_cast<double>(heads * sent + 1);
        if (of.value > best.value) best = of;
      }
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
    for (size_t begin = 0, end = 0; begin < ranks.size(); begin = end) {
      while (end < ranks.size() && ranks[end] == ranks[begin]) ++end;
      if (holds(u, ranks[begin])) continue;
      moved.push_back({units_[u].range,
                       {static_cast<int64_t>(begin), static_cast<int64_t>(end)},
                       ranks[begin]});
    }
  }

  std::span<const Unit> units_;
  std::span<const std::vector<int64_t>> edges_;
  double group_;
  std::vector<std::map<int32_t, int64_t>> held_;      // by unit: rows by rank
  std::vector<std::vector<int32_t>> visits_;          // by unit and KV head: the rank
  std::vector<std::map<int32_t, int32_t>> heads_on_;  // by unit: heads by rank
  std::vector<std::vector<size_t>> units_of_;  // by rank: of which it visits, or visited, heads
  std::vector<double> loads_;                  // by rank: area, and of launches
  std::vector<int64_t> free_;                  // rows that a rank may hold yet
  std::vector<std::vector<RowRange>> ranges_;  // by rank
};

}  // namespace

Balance balance(std::span<const Unit> units, std::span<const std::vector<int64_t>> edges,
                int64_t group, int32_t world, bool by_head) {
  return Balancer(units, edges, group, world).make(by_head);
}

}  // namespace verbatim::dist
