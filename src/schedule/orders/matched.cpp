// Matchings: the visits of a head are dealt to slots, in each of which no two tasks are at one row.
// An edge colouring of the graph of KV tiles and rows (Koenig: as many colours as the largest
// degree will do). All tasks follow one front through the rows, so few rows are in use at once.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "schedule/orders/timed.h"

namespace verbatim::order {
namespace {

constexpr size_t kTasks = kWave / 2;  // at most: so two heads fill a device
// In visits (docs/lab/matched.md): from the last of a chain to the first of the next, and from one
// to the next of a row, whose sum has to be seen.
constexpr int32_t kTurn = 3, kApart = 3;

/// Query tiles, a bit each.
class RowSet {
 public:
  explicit RowSet(int32_t rows) : words_(static_cast<size_t>(rows + 63) / 64) {}
  void insert(int32_t row) { words_[row / 64] |= uint64_t{1} << (row % 64); }
  void erase(int32_t row) { words_[row / 64] &= ~(uint64_t{1} << (row % 64)); }
  /// The first row that is here and not in `others`, from `row` on and then from 0; -1: none is.
  int32_t next(int32_t row, const RowSet& others) const {
    const size_t count = words_.size();
    const uint64_t from = ~uint64_t{0} << (row % 64);
    size_t w = row / 64;
    for (size_t i = 0; i <= count; ++i, w = w + 1 == count ? 0 : w + 1) {
      const uint64_t part = i == 0 ? from : i == count ? ~from : ~uint64_t{0};
      if (const uint64_t found = words_[w] & ~others.words_[w] & part)
        return static_cast<int32_t>(64 * w) + std::countr_zero(found);
    }
    return -1;
  }

 private:
  std::vector<uint64_t> words_;
};

/// A KV tile and what is left of it.
struct Column {
  int32_t kv_tile;
  int32_t left = 0;  // visits of rows of the core
  RowSet rows;       // of the core
  std::vector<TimedVisit> visits;
};

/// What a task does: its columns one after another.
struct Team {
  std::vector<Column*> columns;
  int32_t load = 0;  // visits and turns that are left
  int32_t rests_until = 0;
  size_t column = 0;

  bool is_done() const { return column == columns.size(); }
};

/// The columns in teams of about equal work: the longest goes to that with the least.
std::vector<Team> teams_of(std::vector<Column*> columns) {
  std::vector<Team> teams(std::min(kTasks, (columns.size() + 1) / 2));
  if (teams.empty()) return teams;
  const size_t most = (columns.size() + teams.size() - 1) / teams.size();
  std::ranges::stable_sort(columns, std::greater(), &Column::left);
  for (Column* column : columns) {
    Team* least = nullptr;
    for (Team& team : teams)
      if (team.columns.size() < most && (!least || team.load < least->load)) least = &team;
    least->columns.push_back(column);
    least->load += column->left + kTurn;
  }
  return teams;
}

/// Gives every visit of the teams its slot.
void match(std::vector<Team>& teams, int32_t rows) {
  int64_t sweeps = 0, slots = 0;
  std::vector<Team*> order;
  for (Team& team : teams) {
    order.push_back(&team);
    sweeps = std::max<int64_t>(sweeps, std::ssize(team.columns));
    slots = std::max<int64_t>(slots, team.load);
  }
  RowSet taken(rows);
  std::array<std::vector<int32_t>, kApart> taken_in;  // rows, by the last slots
  for (int32_t slot = 0; !order.empty(); ++slot) {
    std::vector<int32_t>& now = taken_in[slot % kApart];
    for (const int32_t row : now) taken.erase(row);
    now.clear();
    const auto front = static_cast<int32_t>(slot * sweeps * rows / slots % rows);
    // Who has most to do is first to choose. Mostly sorted as it is.
    for (size_t i = 1; i < order.size(); ++i)
      for (size_t k = i; k > 0 && order[k - 1]->load < order[k]->load; --k)
        std::swap(order[k - 1], order[k]);
    for (Team* team : order) {
      if (slot < team->rests_until) continue;
      Column& column = *team->columns[team->column];
      const int32_t row = column.rows.next(front, taken);
      if (row < 0) continue;
      column.rows.erase(row);
      column.visits.push_back({.q_tile = row, .time = slot});
      taken.insert(row);
      now.push_back(row);
      --team->load;
      if (--column.left > 0) continue;
      team->load -= kTurn;
      team->rests_until = slot + 1 + kTurn;
      ++team->column;
    }
    std::erase_if(order, [](const Team* team) { return team->is_done(); });
  }
}

std::vector<Column> columns_of(const TileMap& tiles, TileRange core) {
  std::vector<Column> columns;
  for (int32_t j = 0; j < tiles.kv_tiles(); ++j) {
    Column& column = columns.emplace_back(Column{j, 0, RowSet(core.count()), {}});
    for (const TileRun& run : tiles.column(j))
      for (int32_t q = std::max(run.first, core.first); q < std::min(run.last, core.last); ++q) {
        column.rows.insert(q - core.first);
        ++column.left;
      }
    column.visits.reserve(column.left);
  }
  return columns;
}

/// From rows of the core to query tiles, with those beside it at the end. `run_of`: [query tiles],
/// whatever is in it.
void complete(Trail& trail, const TileMap& tiles, TileRange core,
              std::vector<const TileRun*>& run_of) {
  for (TimedVisit& visit : trail.visits) visit.q_tile += core.first;
  const int32_t behind = (trail.visits.empty() ? 0 : trail.visits.back().time) + kApart;
  const auto add_behind = [&](int32_t from, int32_t to) {
    for (int32_t q = from; q < to; ++q) trail.visits.push_back({.q_tile = q, .time = behind});
  };
  for (const TileRun& run : tiles.column(trail.kv_tile)) {
    std::fill(run_of.begin() + run.first, run_of.begin() + run.last, &run);
    add_behind(run.first, std::min(run.last, core.first));
    add_behind(std::max(run.first, core.last), run.last);
  }
  for (TimedVisit& visit : trail.visits) {
    const TileRun& run = *run_of[visit.q_tile];
    visit.slice_begin = run.full() ? 0 : run.slice_begin;
    visit.slice_count = run.slice_count;
  }
}

}  // namespace

HeadOrder matched(const Tiles& tiles, int32_t group, Parts parts) {
  const TileRange core = tiles->core_q_tiles();
  std::vector<Column> columns = columns_of(*tiles, core);
  std::vector<Column*> seen;
  for (Column& column : columns)
    if (column.left > 0) seen.push_back(&column);
  std::vector<Team> teams = teams_of(seen);
  match(teams, core.count());

  // A chain that walks several query heads is late for those behind it in its task.
  const bool walks = parts.of(group, 1, 1) < group;
  int32_t phases = 1;
  std::vector<Trail> trails;
  std::vector<int32_t> chains;  // of each task
  for (const Team& team : teams) {
    chains.push_back(static_cast<int32_t>(team.columns.size()));
    for (int32_t k = 0; k < chains.back(); ++k) {
      Column& column = *team.columns[static_cast<size_t>(k)];
      trails.push_back({column.kv_tile, walks ? k : 0, std::move(column.visits)});
      column.kv_tile = -1;
    }
    phases = std::max(phases, chains.back());
  }
  for (const Column& column : columns) {  // what only padding sees, or nobody
    if (column.kv_tile < 0) continue;
    trails.push_back({column.kv_tile, phases, {}});
    chains.push_back(1);
  }
  std::vector<const TileRun*> run_of(tiles->q_tiles());
  for (Trail& trail : trails) complete(trail, *tiles, core, run_of);
  // The rows that a chain visits within kApart slots were visited before it began with them by all
  // that come first there. So none waits inside a run, and cut_at_waits() has what it needs.
  return in_time(tiles, group, parts, std::move(trails), chains, kApart);
}

}  // namespace verbatim::order
