#include "schedule/spaced.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <iterator>
#include <limits>
#include <queue>
#include <utility>

namespace verbatim {
namespace {

using Heads = std::span<const std::shared_ptr<const HeadOrder>>;

struct Line {
  std::pair<int32_t, int32_t> q_heads;  // first and last that its tasks walk
  std::vector<PlacedTask> tasks;
  size_t next = 0;
  int64_t ready = 0;  // when the next may start

  size_t left() const { return tasks.size() - next; }
};

std::span<const Chain> chains_of(const HeadOrder& order, int32_t task) {
  const Task& of = order.tasks[task];
  return std::span(order.chains).subspan(of.chain_begin, of.chain_end - of.chain_begin);
}

int64_t visits(const HeadOrder& order, int32_t task) {
  int64_t visits = 0;
  for (const Chain& chain : chains_of(order, task)) visits += order.visits(chain);
  return visits;
}

std::pair<int32_t, int32_t> q_heads_of(const HeadOrder& order, int32_t task) {
  std::pair<int32_t, int32_t> found{std::numeric_limits<int32_t>::max(), -1};
  for (const Chain& chain : chains_of(order, task))
    order.for_each_part(chain, [&](int32_t q_head, RunView) {
      found = {std::min(found.first, q_head), std::max(found.second, q_head)};
    });
  return found;
}

/// The lines of `tasks`, all of one sequence.
std::vector<Line> lines_of(const HeadOrder& order, const std::vector<PlacedTask>& tasks) {
  std::vector<Line> lines;
  for (const PlacedTask& placed : tasks) {
    const auto q_heads = q_heads_of(order, placed.task);
    const auto same = std::ranges::find(lines, q_heads, &Line::q_heads);
    (same == lines.end() ? lines.emplace_back(q_heads) : *same).tasks.push_back(placed);
  }
  std::ranges::sort(lines, {}, &Line::q_heads);
  const auto meet = [](const Line& a, const Line& b) {
    return b.q_heads.first <= a.q_heads.second;
  };
  if (std::ranges::adjacent_find(lines, meet) == lines.end()) return lines;
  return {{{}, tasks}};
}

/// The sequence of a task: of its tiles, -1 where these are of several.
int32_t sequence_of(const HeadOrder& order, int32_t task, const std::vector<int32_t>& of_tile) {
  const std::span<const Chain> chains = chains_of(order, task);
  const int32_t first = of_tile[chains.front().tile];
  const auto same = [&](const Chain& chain) { return of_tile[chain.tile] == first; };
  return std::ranges::all_of(chains, same) ? first : -1;
}

/// The lines of a head, sequence by sequence.
std::vector<Line> lines_of_head(const HeadOrder& order, const std::vector<PlacedTask>& tasks) {
  std::vector<int32_t> of_tile;
  const std::vector<TileMap::Part> parts = order.tiles->parts();
  for (size_t p = 0; p < parts.size(); ++p)
    of_tile.resize(order.pass == Pass::backward ? parts[p].kv.last : parts[p].q.last,
                   static_cast<int32_t>(p));
  std::vector<std::vector<PlacedTask>> of_sequence(parts.size());
  for (const PlacedTask& placed : tasks) {
    const int32_t sequence = sequence_of(order, placed.task, of_tile);
    if (sequence < 0) return {{{}, tasks}};
    of_sequence[sequence].push_back(placed);
  }
  std::vector<Line> lines;
  for (const std::vector<PlacedTask>& own : of_sequence)
    std::ranges::move(lines_of(order, own), std::back_inserter(lines));
  return lines;
}

/// Whether the chains of every tile are added in the sequence of `tasks`.
bool adds_in_turn(Heads heads, const std::vector<PlacedTask>& tasks) {
  std::vector<std::vector<int32_t>> last;  // addend of each tile
  for (const auto& order : heads)
    last.emplace_back(std::max(order->tiles->kv_tiles(), order->tiles->q_tiles()));
  return std::ranges::all_of(tasks, [&](const PlacedTask& placed) {
    const auto added = [&](const Chain& chain) {
      return chain.addend >= std::exchange(last[placed.head][chain.tile], chain.addend);
    };
    return std::ranges::all_of(chains_of(*heads[placed.head], placed.task), added);
  });
}

}  // namespace

std::vector<PlacedTask> spaced(Heads heads, std::vector<PlacedTask> tasks, int32_t workers) {
  constexpr int64_t kApart = 2, kTask = 4;  // visits; what a task's start and end take
  const size_t enough = 3 * static_cast<size_t>(workers);
  std::vector<std::vector<PlacedTask>> of_head(heads.size());
  for (const PlacedTask& placed : tasks) of_head[placed.head].push_back(placed);
  std::deque<Line> lines;
  for (size_t h = 0; h < heads.size(); ++h)
    std::ranges::move(lines_of_head(*heads[h], of_head[h]), std::back_inserter(lines));
  std::priority_queue<int64_t, std::vector<int64_t>, std::greater<>> free(
      {}, std::vector<int64_t>(static_cast<size_t>(workers)));
  std::vector<PlacedTask> found;
  found.reserve(tasks.size());
  while (!lines.empty()) {
    int64_t now = free.top();
    free.pop();
    auto line = lines.begin();  // the first that is ready, or the one that will be soonest
    size_t left = 0;            // tasks of the lines so far
    for (auto next = lines.begin(); next != lines.end() && left < enough; ++next) {
      if (next->ready < line->ready) line = next;
      if (line->ready <= now) break;
      left += next->left();
    }
    now = std::max(now, line->ready);
    found.push_back(line->tasks[line->next++]);
    free.push(now + kTask + visits(*heads[found.back().head], found.back().task));
    line->ready = now + kApart;
    if (line->left() == 0) lines.erase(line);
  }
  return adds_in_turn(heads, found) ? found : tasks;
}

}  // namespace verbatim
