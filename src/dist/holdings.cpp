#include "dist/holdings.h"

#include <algorithm>
#include <utility>

#include "dist/sizes.h"

namespace verbatim::dist {
namespace {

constexpr std::initializer_list<Operand> kOnQ{Operand::q, Operand::o, Operand::lse, Operand::dout,
                                              Operand::dq};
constexpr std::initializer_list<Operand> kOnKv{Operand::k, Operand::v, Operand::dk, Operand::dv};

}  // namespace

std::vector<HeldRows> rows_without_keys(const DistPlan& plan) {
  std::vector<HeldRows> rows;
  if (plan.whole.pass == Pass::forward) return rows;
  for (int32_t head = 0; head < std::ssize(plan.whole.order_of_head); ++head) {
    const HeadOrder& order = plan.whole.order(head);
    const std::vector<int64_t>& edges = order.tiles->q_edges;
    std::vector<RowRange> ranges;
    for (size_t t = 0; t < order.row_addends.size(); ++t)
      if (order.row_addends[t] == 0)
        ranges.push_back({head / plan.whole.problem.kv_heads, {edges[t], edges[t + 1]}});
    rows.emplace_back(std::move(ranges));
  }
  return rows;
}

Holdings::Memory::Memory(HeldPieces of, Interval all, std::initializer_list<Operand> operands)
    : pieces(std::move(of)), heads(all) {
  for (const Operand operand : operands) this->of(operand) = Present(pieces.size(), heads.end);
}

Holdings::Holdings(const DistPlan& plan, const RankPlan& own, const Cuts& q_cuts,
                   const Cuts& kv_cuts)
    : problem_(plan.whole.problem),
      own_(own),
      kv_cuts_(kv_cuts),
      home_q_(HeldPieces(own.home_q, q_cuts), heads_at_home(Operand::q), kOnQ),
      home_kv_(HeldPieces(own.home_kv, kv_cuts), heads_at_home(Operand::k), kOnKv),
      kv_(HeldPieces(own.kv, kv_cuts), own.kv_heads, {Operand::k, Operand::v}),
      ended_(HeldPieces(own.ended, kv_cuts), own.kv_heads, {Operand::dk, Operand::dv}),
      slots_(static_cast<size_t>(own.kv_slots), -1) {
  for (const Room& room : own.rooms)
    rooms_.emplace_back(HeldPieces(room.in_place ? HeldRows() : room.q, q_cuts), room.heads, kOnQ);
}

const HeldRows& Holdings::rows_at_home(Operand operand) const {
  return on_kv_axis(operand) ? own_.home_kv : own_.home_q;
}

Interval Holdings::heads_at_home(Operand operand) const {
  return {0, on_kv_axis(operand) ? problem_.kv_heads : problem_.q_heads};
}

Holdings::Memory& Holdings::memory(Space space, Operand operand, int32_t room) {
  if (space == Space::home) return on_kv_axis(operand) ? home_kv_ : home_q_;
  if (is_kv(operand)) return kv_;
  if (on_kv_axis(operand)) return ended_;
  return own_.rooms[room].in_place ? home_q_ : rooms_[room];
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
const char* Holdings::each(Space space, const Box& box, Interval pieces, int32_t room, F&& f) {
  if (room < 0 || room >= std::ssize(rooms_)) return "in no room of this rank";
  Memory& memory = this->memory(space, box.operand, room);
  const std::optional<Interval> held = memory.pieces.find(pieces);
  if (!held || box.heads.begin < memory.heads.begin || memory.heads.end < box.heads.end ||
      (space == Space::work && is_kv(box.operand) && !has_slot(box)))
    return "in no memory of this rank";
  for (int64_t h = box.heads.begin; h < box.heads.end; ++h)
    if (const char* wrong = f(memory.of(box.operand), *held, h)) return wrong;
  return nullptr;
}

const char* Holdings::read(Space space, const Box& box, Interval pieces, int32_t room) {
  return each(space, box, pieces, room, [](const Present& present, Interval held, int64_t head) {
    return present.all(held, head) ? nullptr : "read before they are there";
  });
}

const char* Holdings::write(Space space, const Box& box, Interval pieces, int32_t room) {
  return each(space, box, pieces, room, [](Present& present, Interval held, int64_t head) {
    if (present.any(held, head)) return "written twice";
    present.set(held, head, true);
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
  const HeldRows rows = of_entry(own_.kv, last / kv_heads);
  for (const RowRange& range : rows.ranges())
    for (const Operand operand : {Operand::k, Operand::v})
      kv_.of(operand).set(kv_.pieces.find(kv_cuts_.find(range)).value(), last % kv_heads, false);
  return true;
}

}  // namespace verbatim::dist
