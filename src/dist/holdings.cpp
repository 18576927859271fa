#include "dist/holdings.h"

#include <algorithm>
#include <utility>

#include "dist/sizes.h"

namespace verbatim::dist {

const RowPieces& Holdings::Rows::pieces(Operand operand) const {
  return is_kv(operand) ? kv : on_kv_axis(operand) ? sums : q;
}

Holdings::Holdings(const DistPlan& plan, const RankPlan& own, const Cuts& q_cuts,
                   const Cuts& kv_cuts)
    : problem_(plan.whole.problem),
      own_(own),
      rows_{{{RowPieces(own.home_q, q_cuts),
              RowPieces(own.home_kv, kv_cuts),
              RowPieces(own.home_kv, kv_cuts),
              {}},
             {RowPieces(own.q, q_cuts),
              RowPieces(own.kv, kv_cuts),
              RowPieces(own.ended, kv_cuts),
              {}}}},
      slots_(static_cast<size_t>(own.kv_slots), -1) {
  for (const Space space : {Space::home, Space::work}) {
    Rows& rows = rows_in(space);
    for (int o = 0; o < kOperands; ++o) {
      const auto operand = static_cast<Operand>(o);
      rows.there.emplace_back(rows.pieces(operand).size(), heads_in(space, operand).end);
    }
  }
}

Interval Holdings::heads_in(Space space, Operand operand) const {
  const bool kv = on_kv_axis(operand);
  if (space == Space::home) return {0, kv ? problem_.kv_heads : problem_.q_heads};
  return kv ? own_.kv_heads : own_.q_heads;
}

/// Of K and V, which the work space holds one head at a time.
bool Holdings::has_slot(const Box& box) const {
  const int64_t head = box.range.batch * problem_.kv_heads + box.heads.begin;
  return box.heads.end == box.heads.begin + 1 && slot_of(static_cast<int32_t>(head)) >= 0;
}

int32_t Holdings::slot_of(int32_t head) const {
  const auto slot = std::ranges::find(slots_, head);
  return slot == slots_.end() ? -1 : static_cast<int32_t>(slot - slots_.begin());
}

/// What f(present, pieces, head) returns for the heads of a box, until it is something.
template <class F>
const char* Holdings::each(Space space, const Box& box, F&& f) {
  if (!on_kv_axis(box.operand) && own_.in_place) space = Space::home;
  Rows& rows = rows_in(space);
  const std::optional<Interval> pieces = rows.pieces(box.operand).find(box.range);
  const Interval heads = heads_in(space, box.operand);
  if (!pieces || box.heads.begin < heads.begin || heads.end < box.heads.end ||
      (space == Space::work && is_kv(box.operand) && !has_slot(box)))
    return "in no memory of this rank";
  for (int64_t h = box.heads.begin; h < box.heads.end; ++h)
    if (const char* wrong = f(rows.there[static_cast<size_t>(box.operand)], *pieces, h))
      return wrong;
  return nullptr;
}

const char* Holdings::read(Space space, const Box& box) {
  return each(space, box, [](const Present& present, Interval pieces, int64_t head) {
    return present.all(pieces, head) ? nullptr : "read before they are there";
  });
}

const char* Holdings::write(Space space, const Box& box) {
  return each(space, box, [](Present& present, Interval pieces, int64_t head) {
    if (present.any(pieces, head)) return "written twice";
    present.set(pieces, head, true);
    return static_cast<const char*>(nullptr);
  });
}

bool Holdings::hold(const Hold& hold) {
  const int64_t kv_heads = problem_.kv_heads, kv_head = hold.head % kv_heads;
  if (hold.slot < 0 || hold.slot >= std::ssize(slots_) || hold.head < 0 ||
      hold.head >= problem_.batch * kv_heads || kv_head < own_.kv_heads.begin ||
      kv_head >= own_.kv_heads.end || std::ranges::find(slots_, hold.head) != slots_.end())
    return false;
  const int32_t last = std::exchange(slots_[hold.slot], hold.head);
  if (last < 0) return true;
  Rows& work = rows_in(Space::work);
  const HeldRows rows = of_entry(own_.kv, last / kv_heads);
  for (const RowRange& range : rows.ranges())
    for (const Operand operand : {Operand::k, Operand::v})
      work.there[static_cast<size_t>(operand)].set(work.kv.find(range).value(), last % kv_heads,
                                                   false);
  return true;
}

}  // namespace verbatim::dist
