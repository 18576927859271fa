#include "dist/strategy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>

#include "core/names.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

constexpr std::array kStrategies{
    StrategyInfo{"ulysses",
                 "each rank has all positions of some heads: all-to-all before and after"},
    StrategyInfo{"ring", "K and V go round, from neighbour to neighbour"},
    StrategyInfo{"allgather", "every rank sends its K and V to all others"},
    StrategyInfo{"usp", "ulysses inside groups of ranks, a ring across them"},
    StrategyInfo{"loongtrain",
                 "ulysses inside groups, a double ring across: inner windows, outer steps"},
    StrategyInfo{"balanced", "K and V go only to the ranks that visit them"},
};

/// LongCA-bench's groups: the GPUs of a node.
constexpr int32_t kMostInner = 8;

}  // namespace

std::span<const StrategyInfo> strategies() { return kStrategies; }

namespace dist {
namespace {

[[noreturn]] void refuse(std::string why, const char* argument, int64_t got, std::string expected,
                         int64_t nearest) {
  throw Error(ErrorCode::invalid_argument, "dist", std::move(why),
              {argument, fmt::to_string(got), std::move(expected), fmt::to_string(nearest)});
}

/// The divisor of both that is nearest to `wanted` and at most `most`; the smaller of two.
int32_t nearest_divisor(int64_t a, int64_t b, int64_t wanted, int64_t most) {
  int64_t best = 1;
  for (int64_t n = 1; n <= std::min({a, b, most}); ++n)
    if (a % n == 0 && b % n == 0 && std::abs(n - wanted) < std::abs(best - wanted)) best = n;
  return static_cast<int32_t>(best);
}

int32_t inner_size(const Problem& problem, const DistOptions& options) {
  const int32_t world = options.world;
  if (options.strategy == "ulysses") {
    if (problem.q_heads % world != 0)
      refuse("the query heads cannot be dealt to so many ranks", "world", world,
             fmt::format("a divisor of {} query heads", problem.q_heads),
             nearest_divisor(problem.q_heads, problem.q_heads, world, problem.q_heads));
    if (options.ulysses_size != 0 && options.ulysses_size != world)
      refuse("all ranks share the heads", "ulysses_size", options.ulysses_size,
             fmt::format("{}, or strategy usp or loongtrain", world), world);
    return world;
  }
  if (options.strategy != "usp" && options.strategy != "loongtrain") {
    if (options.ulysses_size < 0 || options.ulysses_size > 1)
      refuse("this strategy shares no heads", "ulysses_size", options.ulysses_size,
             "1, or strategy usp or loongtrain", 1);
    return 1;
  }
  const int64_t wanted = options.ulysses_size;
  if (wanted == 0)
    return nearest_divisor(problem.q_heads, world, kMostInner,
                           std::clamp(world / 2, 1, kMostInner));
  if (wanted < 0 || world % wanted != 0 || problem.q_heads % wanted != 0)
    refuse("the Ulysses group does not divide ranks and query heads", "ulysses_size", wanted,
           fmt::format("a divisor of {} ranks and of {} query heads", world, problem.q_heads),
           nearest_divisor(problem.q_heads, world, wanted, world));
  return static_cast<int32_t>(wanted);
}

int32_t window_size(int32_t outer, const DistOptions& options) {
  if (options.strategy != "loongtrain") {
    if (options.ring_window != 0)
      refuse("this strategy has no windows", "ring_window", options.ring_window,
             "0, or strategy loongtrain", 0);
    return 1;
  }
  const int32_t wanted = options.ring_window;
  if (wanted == 0) {
    int32_t window = 1;
    for (int32_t n = 1; n * n <= outer; ++n)
      if (outer % n == 0) window = n;
    return window;
  }
  if (wanted < 0 || outer % wanted != 0)
    refuse("the window does not divide the ring", "ring_window", wanted,
           fmt::format("a divisor of {}, the ranks of a ring", outer),
           nearest_divisor(outer, outer, wanted, outer));
  return wanted;
}

Route route_of(const std::string& strategy) {
  if (strategy == "ring" || strategy == "usp") return Route::ring;
  if (strategy == "loongtrain") return Route::double_ring;
  return strategy == "allgather" ? Route::gather : Route::needed;
}

}  // namespace

Grid make_grid(const Problem& problem, DistOptions& options) {
  std::vector<std::string> names;
  for (const StrategyInfo& info : kStrategies) names.emplace_back(info.name);
  if (std::ranges::find(names, options.strategy) == names.end())
    throw Error(
        ErrorCode::invalid_argument, "dist", "no such strategy",
        {"strategy", "'" + options.strategy + "'", fmt::format("{}", fmt::join(names, ", ")),
         options.strategy == "auto"
             ? fmt::format("what verbatim plan --world replay:{} --strategy auto takes",
                           options.world)
             : nearest_name(options.strategy, names)});
  Grid grid;
  grid.inner = inner_size(problem, options);
  grid.outer = options.world / grid.inner;
  grid.window = window_size(grid.outer, options);
  grid.route = route_of(options.strategy);
  options.ulysses_size = grid.inner;
  options.ring_window = options.strategy == "loongtrain" ? grid.window : 0;
  return grid;
}

std::vector<Hop> hops(const Grid& grid) {
  const int32_t size = grid.outer;
  std::vector<Hop> all;
  // Round rings of `ring` neighbours: after each hop, what came goes on. The first ring member of
  // an outer index is the multiple of `ring` below it.
  const auto go_round = [&](int32_t ring, int32_t windows_back) {
    for (int32_t step = 1; step < ring; ++step) {
      for (int32_t from = 0; from < size; ++from) {
        const int32_t first = from / ring * ring, place = from - first;
        const int32_t held = first + (place - step + 1 + ring) % ring;
        all.push_back(
            {from, first + (place + 1) % ring, (held - windows_back * ring + size * ring) % size});
      }
    }
  };
  switch (grid.route) {
    case Route::ring:
      go_round(size, 0);
      break;
    case Route::double_ring:
      for (int32_t back = 0; back < size / grid.window; ++back) {
        for (int32_t from = 0; back > 0 && from < size; ++from)
          all.push_back(
              {from, (from + grid.window) % size, (from - (back - 1) * grid.window + size) % size});
        go_round(grid.window, back);
      }
      break;
    case Route::needed:
      break;
    case Route::gather:
      for (int32_t step = 1; step < size; ++step)
        for (int32_t from = 0; from < size; ++from)
          all.push_back({from, (from + step) % size, from});
      break;
  }
  return all;
}

}  // namespace dist
}  // namespace verbatim
