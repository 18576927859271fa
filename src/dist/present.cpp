#include "dist/present.h"

#include <set>
#include <utility>

#include "dist/sizes.h"

namespace verbatim::dist {

Cuts::Cuts(const DistPlan& plan, std::vector<int64_t> TileMap::*edges,
           const std::vector<const HeldRows*>& held)
    : entries_(static_cast<size_t>(plan.whole.problem.batch)) {
  const Plan& whole = plan.whole;
  std::set<std::pair<int64_t, const TileMap*>> known;
  for (size_t head = 0; head < whole.order_of_head.size(); ++head) {
    const int64_t b = static_cast<int64_t>(head) / whole.problem.kv_heads;
    const TileMap& tiles = *whole.order(static_cast<int32_t>(head)).tiles;
    if (!known.insert({b, &tiles}).second) continue;
    auto& own = entries_[b].at;
    own.insert(own.end(), (tiles.*edges).begin(), (tiles.*edges).end());
  }
  for (const HeldRows* rows : held)
    for (const RowRange& range : rows->ranges()) {
      entries_[range.batch].at.push_back(range.rows.begin);
      entries_[range.batch].at.push_back(range.rows.end);
    }
  int64_t pieces = 0;
  for (auto& [at, first] : entries_) {
    std::ranges::sort(at);
    at.erase(std::unique(at.begin(), at.end()), at.end());
    first = pieces;
    pieces += std::ssize(at);  // one more than lie between them: entries are apart
  }
}

Interval Cuts::find(const RowRange& range) const {
  if (range.batch < 0 || range.batch >= std::ssize(entries_)) return {0, 0};
  const auto& [at, first] = entries_[static_cast<size_t>(range.batch)];
  const auto begin = std::ranges::lower_bound(at, range.rows.begin);
  const auto end = std::lower_bound(begin, at.end(), range.rows.end);
  if (end == at.end() || *begin != range.rows.begin || *end != range.rows.end) return {0, 0};
  return {first + (begin - at.begin()), first + (end - at.begin())};
}

namespace {

Cuts q_cuts(const DistPlan& plan) {
  std::vector<const HeldRows*> held;
  for (const RankPlan& rank : plan.ranks) {
    held.push_back(&rank.home_q);
    for (const Room& room : rank.rooms) held.push_back(&room.q);
  }
  return {plan, &TileMap::q_edges, held};
}

Cuts kv_cuts(const DistPlan& plan) {
  std::vector<const HeldRows*> held;
  for (const RankPlan& rank : plan.ranks)
    held.insert(held.end(), {&rank.home_kv, &rank.kv, &rank.ended});
  return {plan, &TileMap::kv_edges, held};
}

}  // namespace

BoxCuts::BoxCuts(const DistPlan& plan) : q(q_cuts(plan)), kv(kv_cuts(plan)) {}

Interval BoxCuts::find(const Box& box) const {
  return (on_kv_axis(box.operand) ? kv : q).find(box.range);
}

std::span<const Interval> BoxCuts::find(const Boxes& boxes) {
  const auto [at, fresh] = known_.try_emplace(boxes.begin(), pieces_.size());
  if (fresh)
    for (const Box& box : boxes) pieces_.push_back(find(box));
  return std::span(pieces_).subspan(at->second, boxes.size());
}

HeldPieces::HeldPieces(const HeldRows& rows, const Cuts& cuts) {
  for (const RowRange& range : rows.ranges()) {
    const auto [begin, end] = cuts.find(range);
    stretches_.push_back({begin, end, size_});
    size_ += end - begin;
  }
}

}  // namespace verbatim::dist
