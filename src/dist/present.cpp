#include "dist/present.h"

#include <set>
#include <tuple>
#include <utility>

namespace verbatim::dist {
namespace {

Cuts cuts(const DistPlan& plan, std::vector<int64_t> TileMap::*edges,
          const std::vector<const HeldRows*>& held) {
  const Plan& whole = plan.whole;
  Cuts all(static_cast<size_t>(whole.problem.batch));
  std::set<std::pair<int64_t, const TileMap*>> known;
  for (size_t head = 0; head < whole.order_of_head.size(); ++head) {
    const int64_t b = static_cast<int64_t>(head) / whole.problem.kv_heads;
    const TileMap& tiles = *whole.order(static_cast<int32_t>(head)).tiles;
    if (!known.insert({b, &tiles}).second) continue;
    auto& own = all[b];
    own.insert(own.end(), (tiles.*edges).begin(), (tiles.*edges).end());
  }
  for (const HeldRows* rows : held)
    for (const RowRange& range : rows->ranges()) {
      all[range.batch].push_back(range.rows.begin);
      all[range.batch].push_back(range.rows.end);
    }
  for (auto& own : all) {
    std::ranges::sort(own);
    own.erase(std::unique(own.begin(), own.end()), own.end());
  }
  return all;
}

}  // namespace

Cuts q_cuts(const DistPlan& plan) {
  std::vector<const HeldRows*> held;
  for (const RankPlan& rank : plan.ranks) {
    held.push_back(&rank.home_q);
    for (const Room& room : rank.rooms) held.push_back(&room.q);
  }
  return cuts(plan, &TileMap::q_edges, held);
}

Cuts kv_cuts(const DistPlan& plan) {
  std::vector<const HeldRows*> held;
  for (const RankPlan& rank : plan.ranks) {
    held.push_back(&rank.home_kv);
    held.push_back(&rank.kv);
  }
  return cuts(plan, &TileMap::kv_edges, held);
}

RowPieces::RowPieces(const HeldRows& rows, const Cuts& cuts) : entries_(cuts.size()) {
  for (const RowRange& range : rows.ranges()) {
    const std::vector<int64_t>& at = cuts[range.batch];
    Entry& entry = entries_[static_cast<size_t>(range.batch)];
    auto cut = std::ranges::upper_bound(at, range.rows.begin);
    for (int64_t begin = range.rows.begin; begin < range.rows.end;) {
      const int64_t end = cut == at.end() ? range.rows.end : std::min(*cut++, range.rows.end);
      entry.begins.push_back(begin);
      entry.before.push_back(entry.before.back() + end - begin);
      begin = end;
    }
  }
  for (Entry& entry : entries_) {
    entry.first = static_cast<int64_t>(size_);
    size_ += entry.begins.size();
  }
}

std::optional<Interval> RowPieces::search(const RowRange& range) const {
  if (range.batch < 0 || range.batch >= std::ssize(entries_)) return std::nullopt;
  const Entry& entry = entries_[static_cast<size_t>(range.batch)];
  const auto begin = std::ranges::lower_bound(entry.begins, range.rows.begin);
  const auto end = std::lower_bound(begin, entry.begins.end(), range.rows.end);
  if (begin == end || *begin != range.rows.begin) return std::nullopt;
  const auto before = entry.before.begin();
  const Interval found{begin - entry.begins.begin(), end - entry.begins.begin()};
  const int64_t last_rows = before[found.end] - before[found.end - 1];
  if (*std::prev(end) + last_rows != range.rows.end ||
      before[found.end] - before[found.begin] != range.rows.end - range.rows.begin)
    return std::nullopt;
  return Interval{entry.first + found.begin, entry.first + found.end};
}

}  // namespace verbatim::dist
