#include "verbatim/piece.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace verbatim {

HeldRows::HeldRows(std::vector<RowRange> ranges) {
  std::erase_if(ranges, [](const RowRange& range) { return range.rows.begin >= range.rows.end; });
  std::ranges::sort(ranges, [](const RowRange& a, const RowRange& b) {
    return std::tie(a.batch, a.rows.begin) < std::tie(b.batch, b.rows.begin);
  });
  for (const RowRange& range : ranges) {
    if (ranges_.empty() || ranges_.back().batch != range.batch ||
        ranges_.back().rows.end < range.rows.begin) {
      ranges_.push_back(range);
    } else {
      ranges_.back().rows.end = std::max(ranges_.back().rows.end, range.rows.end);
    }
  }
  for (const RowRange& range : ranges_)
    begin_.push_back(begin_.back() + range.rows.end - range.rows.begin);
}

size_t HeldRows::find(int64_t batch, int64_t position) const {
  const auto after = std::ranges::upper_bound(
      ranges_, std::tuple(batch, position), {},
      [](const RowRange& range) { return std::tuple(range.batch, range.rows.begin); });
  return static_cast<size_t>(after - ranges_.begin()) - 1;
}

bool HeldRows::holds(int64_t batch, Interval rows) const {
  const size_t k = find(batch, rows.begin);
  return k < ranges_.size() && ranges_[k].batch == batch && rows.end <= ranges_[k].rows.end;
}

int64_t HeldRows::at(int64_t batch, int64_t position) const {
  const size_t k = find(batch, position);
  return begin_[k] + position - ranges_[k].rows.begin;
}

HeldRows HeldRows::intersect(const HeldRows& other) const {
  std::vector<RowRange> common;
  for (const RowRange& a : ranges_)
    for (const RowRange& b : other.ranges_)
      if (a.batch == b.batch)
        common.push_back(
            {a.batch, {std::max(a.rows.begin, b.rows.begin), std::min(a.rows.end, b.rows.end)}});
  return HeldRows(std::move(common));
}

Plan plan_of(const Plan& whole, const Piece& piece) {
  Plan plan;
  plan.pass = whole.pass;
  plan.problem = whole.problem;
  plan.level = whole.level;
  plan.arithmetic = whole.arithmetic;
  for (const auto& order : whole.orders) {
    auto idle = std::make_shared<HeadOrder>();
    idle->pass = order->pass;
    idle->name = order->name;
    idle->tiles = order->tiles;
    idle->group = order->group;
    idle->row_addends = order->row_addends;
    plan.orders.push_back(std::move(idle));
  }
  plan.order_of_head = whole.order_of_head;
  plan.order_of_head[static_cast<size_t>(piece.head)] = static_cast<int32_t>(plan.orders.size());
  plan.orders.push_back(piece.order);
  plan.placement.name = "queue";
  plan.placement.workers = std::max(whole.placement.workers, 1);
  for (size_t t = 0; t < piece.order->tasks.size(); ++t)
    plan.placement.tasks.push_back({piece.head, static_cast<int32_t>(t)});
  plan.residency = 1;
  return plan;
}

}  // namespace verbatim
