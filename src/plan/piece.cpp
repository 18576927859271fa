#include "verbatim/piece.h"

#include <algorithm>
#include <tuple>

namespace verbatim {

HeldRows::HeldRows(std::vector<RowRange> ranges) {
  std::erase_if(ranges, [](const RowRange& range) { return range.rows.begin >= range.rows.end; });
  std::ranges::sort(ranges, [](const RowRange& a, const RowRange& b) {
    return std::tie(a.batch, a.rows.begin) < std::tie(b.batch, b.rows.begin);
  });
  for (size_t k = 0; k < ranges.size();) {
    RowRange joined = ranges[k];
    for (++k; k < ranges.size() && ranges[k].batch == joined.batch &&
              ranges[k].rows.begin <= joined.rows.end;
         ++k)
      joined.rows.end = std::max(joined.rows.end, ranges[k].rows.end);
    append(joined);
  }
}

void HeldRows::append(const RowRange& range) {
  if (begin_.empty()) begin_.push_back(0);
  begin_.push_back(begin_.back() + range.rows.end - range.rows.begin);
  ranges_.push_back(range);
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
  HeldRows common;
  for (auto a = ranges_.begin(), b = other.ranges_.begin();
       a != ranges_.end() && b != other.ranges_.end();) {
    const Interval rows{std::max(a->rows.begin, b->rows.begin), std::min(a->rows.end, b->rows.end)};
    if (a->batch == b->batch && rows.begin < rows.end) common.append({a->batch, rows});
    const bool a_first = std::tie(a->batch, a->rows.end) < std::tie(b->batch, b->rows.end);
    a_first ? ++a : ++b;
  }
  return common;
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
  plan.placement.name = "queue";
  plan.placement.workers = std::max(whole.placement.workers, 1);
  for (const HeadPiece& own : piece.heads) {
    plan.order_of_head[own.head] = static_cast<int32_t>(plan.orders.size());
    plan.orders.push_back(own.order);
  }
  plan.placement.tasks = piece.tasks;
  plan.residency = 1;
  return plan;
}

}  // namespace verbatim
