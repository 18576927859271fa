#include "plan/check_visits.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace verbatim {
namespace {

/// Visits of a run, in the mean, up to which counting them one by one costs less than stairs: most
/// runs of irregular masks are one tile.
constexpr int64_t kShort = 8;

/// Visits [first, last) of one kept tile, with their slices.
struct Visited {
  int32_t kept, first, last, slice_begin, slice_count;
};

std::vector<Visited> sorted_visits(const Trail& trail) {
  std::vector<Visited> visits;
  size_t runs = 0;
  for (const Step& step : trail.steps) runs += step.runs.size();
  visits.reserve(runs);
  std::vector<Step> steps = trail.steps;
  std::ranges::stable_sort(steps, {}, &Step::kept);
  for (const Step& step : steps) {
    const size_t begin = visits.size();
    for (const Run& run : step.runs) {
      const auto add = [&](int32_t first, int32_t last) {
        visits.push_back({step.kept, first, last, run.slice_begin, run.slice_count});
      };
      if (run.step == 1) {
        add(run.first, run.first + run.count);
      } else if (run.step == -1) {
        add(run.first - run.count + 1, run.first + 1);
      } else {
        for (int32_t i = 0; i < run.count; ++i) add(run.tile(i), run.tile(i) + 1);
      }
    }
    // Those of a descending order come out backwards.
    if (step.runs.front().first > step.runs.back().first)
      std::reverse(visits.begin() + static_cast<ptrdiff_t>(begin), visits.end());
  }
  const auto before = [](const Visited& a, const Visited& b) {
    return std::tie(a.kept, a.first) < std::tie(b.kept, b.first);
  };
  if (!std::ranges::is_sorted(visits, before)) std::ranges::sort(visits, before);
  return visits;
}

/// `visit`: a Run or a Visited.
template <class Visit>
bool same_slices(const TileMap& tiles, const Visit& visit, const TileRun& run) {
  if (visit.slice_count != run.slice_count) return false;
  const auto size = static_cast<int64_t>(tiles.slice_ids.size());
  if (visit.slice_begin < 0 || int64_t{visit.slice_begin} + visit.slice_count > size) return false;
  const auto ids = tiles.slice_ids.begin();
  return visit.slice_begin == run.slice_begin ||
         std::equal(ids + run.slice_begin, ids + run.slice_begin + run.slice_count,
                    ids + visit.slice_begin);
}

/// Whether the steps of a kept tile visit what its mask shows, in any sequence, with its slices.
/// `expected_at`: [streamed tiles], null; and so on return, unless false is returned.
bool shows_all(const Subject& subject, std::span<const Step> steps,
               std::vector<const TileRun*>& expected_at) {
  int64_t unvisited = 0;
  for (const TileRun& run : subject.expected(steps.front().kept)) {
    std::fill(expected_at.begin() + run.first, expected_at.begin() + run.last, &run);
    unvisited += run.last - run.first;
  }
  for (const Step& step : steps)
    for (const Run& run : step.runs) {
      const TileRun* expected = expected_at[run.first];
      if (!expected || !same_slices(*subject.order.tiles, run, *expected)) return false;
      for (int32_t i = 0; i < run.count; ++i)
        if (std::exchange(expected_at[run.tile(i)], nullptr) != expected) return false;
      unvisited -= run.count;
    }
  return unvisited == 0;
}

/// What check_sorted() proves, for runs of few visits in any sequence. False proves nothing.
bool is_complete(const Subject& subject, const Trail& trail) {
  std::vector<Step> steps = trail.steps;
  std::ranges::stable_sort(steps, {}, &Step::kept);
  std::vector<const TileRun*> expected_at(subject.streamed_tiles());
  auto step = steps.begin();
  for (int32_t kept = 0; kept < subject.kept_tiles(); ++kept) {
    const auto begin = step;
    while (step != steps.end() && step->kept == kept) ++step;
    if (begin == step ? !subject.expected(kept).empty()
                      : !shows_all(subject, {begin, step}, expected_at))
      return false;
  }
  return true;
}

/// That the trail visits what the mask shows, each tile once.
void check_sorted(const Subject& subject, const Trail& trail) {
  const std::vector<Visited> visits = sorted_visits(trail);
  auto visit = visits.begin();
  for (int32_t kept = 0; kept < subject.kept_tiles(); ++kept) {
    const auto here = [&] { return visit != visits.end() && visit->kept == kept; };
    const auto name = [&](int32_t streamed) { return subject.name(kept, trail.q_head, streamed); };
    const auto fail_unexpected = [&] {
      const bool twice =
          visit != visits.begin() && (visit - 1)->kept == kept && (visit - 1)->last > visit->first;
      refuse_plan(name(visit->first) + (twice ? " is visited twice" : " is empty but visited"));
    };
    int32_t next = 0;  // tiles below are settled
    for (const TileRun& run : subject.expected(kept)) {
      next = std::max(next, run.first);
      while (next < run.last) {
        if (here() && visit->first < next) fail_unexpected();
        if (!here() || visit->first > next) refuse_plan(name(next) + " is never visited");
        if (!same_slices(*subject.order.tiles, *visit, run))
          refuse_plan(name(next) + " is masked by other slices than its own");
        if (visit->last > run.last) refuse_plan(name(run.last) + " is not visited like its mask");
        next = visit->last;
        ++visit;
      }
    }
    if (here()) fail_unexpected();
  }
}

/// Whether a step goes over the tiles of its mask from end to end, and in the backward finds each
/// row counted up to its addend in `next`, [rows].
bool goes_straight(const Subject& subject, const Step& step, std::vector<int32_t>& next) {
  const TileMap& tiles = *subject.order.tiles;
  const std::span<const TileRun> expected = subject.expected(step.kept);
  const int32_t way = step.runs.front().step;
  if (std::abs(int64_t{way}) != 1) return false;
  size_t met = 0;  // of `expected`, as it goes
  int32_t at = 0, end = 0;
  const auto meet = [&]() -> const TileRun& {
    return expected[way > 0 ? met : expected.size() - 1 - met];
  };
  for (const Run& run : step.runs) {
    if (at == end) {
      if (met == expected.size()) return false;
      at = way > 0 ? meet().first : meet().last - 1;
      end = way > 0 ? meet().last : meet().first - 1;
    }
    if (run.first != at || run.step != way || run.count < 1 || run.count > (end - at) * way ||
        run.addend_every < 1 || !same_slices(tiles, run, meet()))
      return false;
    if (!subject.backward()) {
      if (run.addend != 0 || run.addend_step != 0) return false;
      at += run.count * way;
    } else {
      for (int32_t i = 0; i < run.count; ++i, at += way)
        if (next[at]++ != run.addend + int64_t{i / run.addend_every} * run.addend_step)
          return false;
    }
    met += at == end;
  }
  return met == expected.size();
}

}  // namespace

bool has_short_runs(const Subject& subject, const Trail& trail) {
  int64_t runs = 0;
  for (const Step& step : trail.steps) runs += std::ssize(step.runs);
  return subject.order.tiles->count() <= kShort * runs;
}

void check_complete(const Subject& subject, const Trail& trail) {
  if (!has_short_runs(subject, trail) || !is_complete(subject, trail)) check_sorted(subject, trail);
}

bool is_straight(const Subject& subject, const std::vector<Trail>& trails) {
  const HeadOrder& order = subject.order;
  const int64_t visits = order.tiles->count();
  if (subject.backward() && visits > kShort * std::ssize(order.tiles->columns)) return false;
  int32_t runs = 0;  // of the chains so far: every run is in one
  for (const Chain& chain : order.chains) {
    if (chain.run_begin != runs) return false;
    runs = chain.run_end;
  }
  bool heads = static_cast<size_t>(runs) == order.runs.size();
  order.runs.for_each_part(0, order.runs.size(), [&](int32_t q_head, RunView) {
    heads = heads && 0 <= q_head && q_head < order.group;
  });
  if (!heads) return false;
  for (const Trail& trail : trails) {
    std::vector<int32_t> next(subject.backward() ? order.tiles->q_tiles() : 0);
    std::vector<bool> visited(subject.kept_tiles());
    for (const Step& step : trail.steps) {
      if (visited[step.kept] || !goes_straight(subject, step, next)) return false;
      visited[step.kept] = true;
    }
    for (int32_t kept = 0; kept < subject.kept_tiles(); ++kept)
      if (!visited[kept] && !subject.expected(kept).empty()) return false;
  }
  return true;
}

}  // namespace verbatim
