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
  for (Entry& entry : entries_) {
    std::vector<int64_t>& at = entry.at;
    std::ranges::sort(at);
    at.erase(std::unique(at.begin(), at.end()), at.end());
    entry.first = pieces;
    pieces += std::ssize(at);  // one more than lie between them: entries are apart
    entry.find_near();
  }
}

void Cuts::Entry::find_near() {
  if (at.empty()) return;
  while (at.back() >> shift > std::ssize(at)) ++shift;
  for (size_t i = 0; i < at.size(); ++i) near.resize(static_cast<size_t>(at[i] >> shift) + 1, i);
  near.push_back(at.size());
}

size_t Cuts::Entry::place(int64_t position) const {
  const int64_t bucket = position >> shift;
  if (position < 0 || bucket + 1 >= std::ssize(near)) return at.size();
  const auto begin = at.begin() + static_cast<ptrdiff_t>(near[static_cast<size_t>(bucket)]);
  const auto end = at.begin() + static_cast<ptrdiff_t>(near[static_cast<size_t>(bucket) + 1]);
  const auto found = std::lower_bound(begin, end, position);
  return found != end && *found == position ? static_cast<size_t>(found - at.begin()) : at.size();
}

Interval Cuts::find(const RowRange& range) const {
  if (range.batch < 0 || range.batch >= std::ssize(entries_)) return {0, 0};
  const Entry& entry = entries_[static_cast<size_t>(range.batch)];
  const size_t begin = entry.place(range.rows.begin), end = entry.place(range.rows.end);
  if (begin > end || end == entry.at.size()) return {0, 0};
  return {entry.first + static_cast<int64_t>(begin), entry.first + static_cast<int64_t>(end)};
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
