#include "dist/rooms.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "verbatim/error.h"

namespace verbatim::dist {
namespace {

constexpr double kWaste = 1.25;  // memory of a room over that in use, at most

}  // namespace

Rooms::Rooms(const Problem& problem, const Grid& grid, const Sharding& sharding)
    : problem_(problem),
      grid_(grid),
      homes_q_(starts(sharding.q, problem.batch)),
      homes_kv_(starts(sharding.kv, problem.batch)) {
  const int64_t each = problem.q_heads / grid.inner;
  for (int32_t r = 0; r < grid.inner * grid.outer; ++r) {
    ranks_.push_back(r);
    numbers_.push_back(0);
    heads_.push_back({grid.inner_of(r) * each, (grid.inner_of(r) + 1) * each});
    rows_.emplace_back();
    used_.push_back(0);
  }
  check(sharding.moved);
  for (const MovedHeads& moved : sharding.moved) {
    moved_.push_back(moved);
    if (grid.inner == 1) make_room(moved);  // else one of the group has the head
  }
}

void Rooms::check(std::span<const MovedHeads> moved) const {
  const auto require = [](bool holds, const char* what, const Interval& got, int64_t most) {
    if (!holds)
      throw Error(
          ErrorCode::invalid_argument, "dist", fmt::format("heads that move name {}", what),
          {"moved", fmt::format("{} to {}", got.begin, got.end),
           fmt::format("apart from each other in 0 to {}", most), fmt::format("0 to {}", most)});
  };
  const auto lies_in = [](const Interval& part, int64_t most) {
    return 0 <= part.begin && part.begin <= part.end && part.end <= most;
  };
  std::vector<std::vector<RowRange>> rows(static_cast<size_t>(problem_.kv_heads));
  std::vector<int64_t> counts(rows.size());
  for (const auto& [range, heads, rank] : moved) {
    const Interval ranks{rank, rank + 1}, entries{range.batch, range.batch + 1};
    require(lies_in(ranks, grid_.inner * grid_.outer), "a rank that is none", ranks,
            grid_.inner * grid_.outer);
    require(lies_in(entries, problem_.batch), "a batch entry that is none", entries,
            problem_.batch);
    require(lies_in(range.rows, problem_.q_len), "rows that are none", range.rows, problem_.q_len);
    require(lies_in(heads, problem_.kv_heads), "KV heads that are none", heads, problem_.kv_heads);
    for (auto h = static_cast<size_t>(heads.begin); std::cmp_less(h, heads.end); ++h) {
      rows[h].push_back(range);
      counts[h] += range.rows.end - range.rows.begin;
    }
  }
  for (size_t h = 0; h < rows.size(); ++h)
    require(HeldRows(rows[h]).size() == counts[h], "rows twice",
            {static_cast<int64_t>(h), static_cast<int64_t>(h) + 1}, problem_.kv_heads);
}

Interval Rooms::kv_heads(int32_t rank) const {
  const Interval q = heads(rank);
  return {q.begin / problem_.group(), (q.end + problem_.group() - 1) / problem_.group()};
}

/// Rows with about the same heads share one, which is one launch.
void Rooms::make_room(const MovedHeads& moved) {
  const int64_t group = problem_.group(), rows = moved.range.rows.end - moved.range.rows.begin;
  const Interval heads{moved.kv_heads.begin * group, moved.kv_heads.end * group};
  const int64_t used = rows * (heads.end - heads.begin);
  int32_t number = 1;
  for (int32_t room = grid_.inner * grid_.outer; room < count(); ++room) {
    if (rank_of(room) != moved.rank) continue;
    ++number;
    const auto n = static_cast<size_t>(room);
    std::vector<RowRange> all = rows_[n];
    all.push_back(moved.range);
    const Interval both{std::min(heads_[n].begin, heads.begin), std::max(heads_[n].end, heads.end)};
    if (static_cast<double>(HeldRows(all).size() * (both.end - both.begin)) >
        kWaste * static_cast<double>(used_[n] + used))
      continue;
    heads_[n] = both;
    rows_[n] = std::move(all);
    used_[n] += used;
    moved_.back().rank = room;
    return;
  }
  moved_.back().rank = count();
  ranks_.push_back(moved.rank);
  numbers_.push_back(number);
  heads_.push_back(heads);
  rows_.push_back({moved.range});
  used_.push_back(used);
}

std::set<int32_t> Rooms::holders(const Starts& homes, const HeldRows& rows) {
  std::set<int32_t> ranks;
  for (const RowRange& range : rows.ranges()) {
    const auto& starts = homes[static_cast<size_t>(range.batch)];
    auto home = std::ranges::upper_bound(starts, range.rows.begin, {},
                                         [](const auto& start) { return start.first; });
    if (home != starts.begin()) --home;
    for (; home != starts.end() && home->first < range.rows.end; ++home) ranks.insert(home->second);
  }
  return ranks;
}

Rooms::Starts Rooms::starts(const std::vector<HeldRows>& held, int64_t batch) {
  Starts starts(static_cast<size_t>(batch));
  for (size_t r = 0; r < held.size(); ++r)
    for (const RowRange& range : held[r].ranges())
      starts[static_cast<size_t>(range.batch)].emplace_back(range.rows.begin,
                                                            static_cast<int32_t>(r));
  for (auto& ranges : starts) std::ranges::sort(ranges);
  return starts;
}

/// The room of query head `q_head` (of the problem) for positions held by `home`.
int32_t Rooms::owner(int32_t home, int64_t q_head) const {
  if (home >= grid_.inner * grid_.outer) return home;
  const int64_t inner = q_head / (problem_.q_heads / grid_.inner);
  return grid_.rank(grid_.outer_of(home), static_cast<int32_t>(inner));
}

Owners Rooms::owners(const HeadOrder& order, int32_t head) const {
  const auto b = static_cast<size_t>(head / problem_.kv_heads);
  const int64_t kv_head = head % problem_.kv_heads;
  // Homes, from the first tile that begins in each.
  const auto strips = [](const std::map<int64_t, int32_t>& homes,
                         const std::vector<int64_t>& edges) {
    std::vector<Strip> strips;
    for (const auto& [position, home] : homes) {
      const auto first =
          static_cast<int32_t>(std::ranges::lower_bound(edges, position) - edges.begin());
      if (!strips.empty() && strips.back().first == first) strips.pop_back();
      strips.push_back({first, home});
    }
    return strips;
  };
  const auto owned = [&](std::vector<Strip> strips, int64_t q_head) {
    for (Strip& strip : strips) strip.room = owner(strip.room, q_head);
    return strips;
  };
  std::map<int64_t, int32_t> rows(homes_q_[b].begin(), homes_q_[b].end());
  for (const auto& [range, heads, room] : moved_) {
    if (std::cmp_not_equal(range.batch, b) || kv_head < heads.begin || kv_head >= heads.end)
      continue;
    const auto [begin, end] = range.rows;
    if (end < problem_.q_len) rows.try_emplace(end, std::prev(rows.upper_bound(end))->second);
    rows.erase(rows.lower_bound(begin), rows.lower_bound(end));
    rows[begin] = room;
  }
  Owners owners;
  const int64_t first = kv_head * order.group;
  const std::vector<Strip> q = strips(rows, order.tiles->q_edges);
  for (int32_t g = 0; g < order.group; ++g) owners.rows.push_back(owned(q, first + g));
  owners.tiles =
      owned(strips({homes_kv_[b].begin(), homes_kv_[b].end()}, order.tiles->kv_edges), first);
  return owners;
}

}  // namespace verbatim::dist
