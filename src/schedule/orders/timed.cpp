#include "schedule/orders/timed.h"

#include <algorithm>
#include <numeric>

namespace verbatim::order {
namespace {

using Visit = TimedVisit;

/// `time` is that of the first visit, and becomes that of the next.
std::vector<Visit> visits_of(const TileMap& tiles, TileRange core, const Walk& walk,
                             int32_t& time) {
  std::vector<Visit> visits;
  for (const Sweep& sweep : walk.sweeps) {
    const auto begin = static_cast<ptrdiff_t>(visits.size());
    for (const TileRun& run : tiles.column(walk.kv_tile))
      for (int32_t q = std::max(run.first, sweep.first); q < std::min(run.last, sweep.last); ++q)
        visits.push_back({q, run.full() ? 0 : run.slice_begin, run.slice_count});
    if (sweep.rows == Rows::down) std::reverse(visits.begin() + begin, visits.end());
  }
  for (Visit& visit : visits) {
    visit.time = time;
    time += core.first <= visit.q_tile && visit.q_tile < core.last;
  }
  return visits;
}

/// Numbers the addends of every row by (phase, time, KV tile); returns how many each row has.
std::vector<int32_t> number(std::vector<Trail>& trails, int32_t q_tiles) {
  std::vector<Trail*> sorted;
  for (Trail& trail : trails) sorted.push_back(&trail);
  std::sort(sorted.begin(), sorted.end(), [](const Trail* a, const Trail* b) {
    return a->phase != b->phase ? a->phase < b->phase : a->kv_tile < b->kv_tile;
  });
  std::vector<int32_t> next(q_tiles);
  for (auto begin = sorted.begin(); begin != sorted.end();) {
    const auto end = std::find_if(begin, sorted.end(),
                                  [&](const Trail* t) { return t->phase != (*begin)->phase; });
    const auto for_each = [&](auto&& take) {
      for (auto trail = begin; trail != end; ++trail)
        for (Visit& visit : (*trail)->visits) take(visit, static_cast<size_t>(visit.time));
    };
    std::vector<size_t> place(1);  // of the first visit of each time
    for_each([&](const Visit&, size_t time) {
      if (place.size() < time + 2) place.resize(time + 2);
      ++place[time + 1];
    });
    std::partial_sum(place.begin(), place.end(), place.begin());
    std::vector<Visit*> by_time(place.back());
    for_each([&](Visit& visit, size_t time) { by_time[place[time]++] = &visit; });
    for (Visit* visit : by_time) visit->addend = next[visit->q_tile]++;
    begin = end;
  }
  return next;
}

/// The longest run of query head 0 that starts at visits[0], of visits less than `apart` in time.
Run longest_run(std::span<const Visit> visits, int32_t apart) {
  const Visit& head = visits[0];
  Run run{.first = head.q_tile,
          .count = 1,
          .addend = head.addend,
          .slice_begin = head.slice_begin,
          .slice_count = head.slice_count};
  const auto size = static_cast<int32_t>(visits.size());
  const auto at = [&](int32_t k) -> const Visit& { return visits[k]; };
  if (size == 1 || std::abs(at(1).q_tile - head.q_tile) != 1) return run;
  run.step = at(1).q_tile - head.q_tile;
  const auto same_walk = [&](int32_t k) {
    return k < size && at(k).q_tile == run.tile(k) && at(k).slice_begin == head.slice_begin &&
           at(k).slice_count == head.slice_count && at(k).time - head.time < apart;
  };
  // The end of the plateau of equal addends that begins at k.
  const auto plateau = [&](int32_t k) {
    const int32_t addend = at(k).addend;
    while (same_walk(k) && at(k).addend == addend) ++k;
    return k;
  };
  const int32_t first = plateau(0);
  run.count = first;
  if (!same_walk(first) || plateau(first) > 2 * first) return run;  // the first one was cut short
  run.addend_every = first;
  run.addend_step = at(first).addend - head.addend;
  while (same_walk(run.count) && at(run.count).addend == run.addend_of(run.count)) ++run.count;
  return run;
}

/// Appends them in as few runs as they need.
void compress(PackedRuns& runs, std::span<const Visit> visits, int32_t apart) {
  while (!visits.empty()) {
    const Run run = longest_run(visits, apart);
    runs.push_back(run);
    visits = visits.subspan(run.count);
  }
}

}  // namespace

HeadOrder in_time(const Tiles& tiles, int32_t group, Parts parts, std::vector<Trail> trails,
                  std::span<const int32_t> chains_of_task, int32_t apart) {
  HeadOrder order;
  order.tiles = tiles;
  order.group = group;
  order.row_addends = number(trails, tiles->q_tiles());
  PackedRuns runs;
  std::vector<size_t> ends{0};  // of each trail in `runs`, behind a 0
  for (const Trail& trail : trails) {
    compress(runs, trail.visits, apart);
    ends.push_back(runs.size());
  }
  order.runs = Runs::of_repeats(std::move(runs));

  const int32_t shared = parts.of(group, 1, 1);  // chains of a KV tile
  const auto add_chain = [&](size_t trail, int32_t part) {
    Chain chain{.tile = trails[trail].kv_tile,
                .run_begin = static_cast<int32_t>(order.runs.size()),
                .addend = part,
                .addends = shared};
    const int32_t head = first_head(group, part, shared);
    order.runs.repeat(ends[trail], ends[trail + 1], head,
                      first_head(group, part + 1, shared) - head);
    chain.run_end = static_cast<int32_t>(order.runs.size());
    order.chains.push_back(chain);
  };
  for (int32_t part = 0; part < shared; ++part) {
    size_t trail = 0;
    for (const int32_t count : chains_of_task) {
      const auto chains = static_cast<int32_t>(order.chains.size());
      for (int32_t k = 0; k < count; ++k) add_chain(trail++, part);
      order.tasks.push_back({chains, static_cast<int32_t>(order.chains.size())});
    }
  }
  return order;
}

HeadOrder timed(const Tiles& tiles, int32_t group, Parts parts,
                const std::vector<std::vector<Walk>>& tasks) {
  std::vector<Trail> trails;  // of query head 0: the group shares mask and numbering
  std::vector<int32_t> chains;
  const TileRange core = tiles->core_q_tiles();
  for (const auto& walks : tasks) {
    int32_t time = 0;
    for (const Walk& walk : walks)
      trails.push_back({walk.kv_tile, walk.phase, visits_of(*tiles, core, walk, time)});
    chains.push_back(static_cast<int32_t>(walks.size()));
  }
  return in_time(tiles, group, parts, std::move(trails), chains);
}

}  // namespace verbatim::order
