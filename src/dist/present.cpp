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

RowPieces::RowPieces(const HeldRows& rows, const Cuts& cuts) {
  int64_t held = 0;
  for (const RowRange& range : rows.ranges()) {
    const std::vector<int64_t>& at = cuts[range.batch];
    auto cut = std::ranges::upper_bound(at, range.rows.begin);
    for (int64_t begin = range.rows.begin; begin < range.rows.end;) {
      const int64_t end = cut == at.end() ? range.rows.end : std::min(*cut++, range.rows.end);
      pieces_.push_back({range.batch, {begin, end}});
      before_.push_back(held);
      held += end - begin;
      begin = end;
    }
  }
  before_.push_back(held);
}

std::optional<Interval> RowPieces::find(const RowRange& range) const {
  const auto at = [&](int64_t position) {
    return std::ranges::lower_bound(
               pieces_, std::tuple(range.batch, position), {},
               [](const RowRange& piece) { return std::tuple(piece.batch, piece.rows.begin); }) -
           pieces_.begin();
  };
  const Interval found{at(range.rows.begin), at(range.rows.end)};
  if (found.begin >= found.end) return std::nullopt;
  const RowRange &first = pieces_[found.begin], &last = pieces_[static_cast<size_t>(found.end) - 1];
  const int64_t rows = before_[found.end] - before_[found.begin];
  if (first.batch != range.batch || first.rows.begin != range.rows.begin ||
      last.rows.end != range.rows.end || rows != range.rows.end - range.rows.begin)
    return std::nullopt;
  return found;
}

}  // namespace verbatim::dist
