#include "dist/sizes.h"

#include <algorithm>
#include <array>

#include "backend/local_piece.h"
#include "contract/head_dims.h"

namespace verbatim {
namespace dist {
namespace {

constexpr std::array kForward{Operand::q, Operand::k, Operand::v, Operand::o, Operand::lse};
constexpr std::array kBackward{Operand::q,    Operand::k,  Operand::v,  Operand::o, Operand::lse,
                               Operand::dout, Operand::dq, Operand::dk, Operand::dv};

bool is_wide_v(Operand operand) {
  return operand == Operand::v || operand == Operand::o || operand == Operand::dout ||
         operand == Operand::dv;
}

}  // namespace

bool on_kv_axis(Operand operand) {
  return operand == Operand::k || operand == Operand::v || operand == Operand::dk ||
         operand == Operand::dv;
}

HeldRows of_entry(const HeldRows& rows, int64_t batch) {
  std::vector<RowRange> found;
  for (const RowRange& range : rows.ranges())
    if (range.batch == batch) found.push_back(range);
  return HeldRows(std::move(found));
}

int64_t slot_rows(const RankPlan& rank) {
  int64_t most = 0;
  for (const RowRange& range : rank.kv.ranges())
    most = std::max(most, of_entry(rank.kv, range.batch).size());
  return most;
}

WorkShape work_shape(const RankPlan& rank, Operand operand) {
  if (is_kv(operand)) return {rank.kv_slots * slot_rows(rank), 1};
  return {rank.ended.size(), rank.kv_heads.end - rank.kv_heads.begin};
}

WorkShape work_shape(const Room& room) {
  return {room.in_place ? 0 : room.q.size(), room.heads.end - room.heads.begin};
}

int64_t row_bytes(const Problem& problem, Operand operand) {
  if (operand == Operand::lse) return sizeof(float);
  return (is_wide_v(operand) ? problem.head_dim_v : problem.head_dim) * size_of(problem.dtype);
}

int64_t sum_bytes(const DistPlan& plan, const CarriedSum& sum) {
  const int32_t lowest = sum.step > 0 ? sum.kv_tile : sum.kv_tile - sum.count + 1;
  const auto edge = plan.whole.order(sum.head).tiles->kv_edges.begin() + lowest;
  const Problem& problem = plan.whole.problem;
  return (edge[sum.count] - edge[0]) * (problem.head_dim + problem.head_dim_v) *
         int64_t{sizeof(float)};
}

int64_t message_bytes(const DistPlan& plan, const Boxes& boxes, const CarriedSums& sums) {
  int64_t bytes = 0;
  for (const Box& box : boxes)
    bytes += row_bytes(plan.whole.problem, box.operand) *
             (box.range.rows.end - box.range.rows.begin) * (box.heads.end - box.heads.begin);
  for (const CarriedSum& sum : sums) bytes += sum_bytes(plan, sum);
  return bytes;
}

bool lies_dense(const DistPlan& plan, const Receive& receive) {
  if (!receive.boxes.empty() || receive.sums.empty()) return false;
  const int64_t full = block_floats(plan.whole) * int64_t{sizeof(float)};
  int32_t next = receive.sums.front().block;
  int64_t last = full;
  for (const CarriedSum& sum : receive.sums)
    for (int32_t i = 0; i < sum.count; ++i) {
      if (sum.block + i != next++ || last != full) return false;
      last = sum_bytes(plan, {sum.head, sum.kv_tile + i * sum.step, sum.block + i});
    }
  return true;
}

const Receive* find_receive(const std::vector<Step>& steps, size_t expect) {
  const auto& expected = std::get<Expect>(steps[expect]);
  for (size_t s = expect + 1; s < steps.size(); ++s)
    if (const auto* receive = std::get_if<Receive>(&steps[s]);
        receive && receive->from == expected.from && receive->message == expected.message)
      return receive;
  return nullptr;
}

size_t copied_together(const DistPlan& plan, const std::vector<Step>& steps, size_t first) {
  const auto bytes_of = [&](const Step& step) -> int64_t {
    if (const auto* send = std::get_if<Send>(&step))
      return message_bytes(plan, send->boxes, send->sums);
    if (const auto* receive = std::get_if<Receive>(&step))
      return message_bytes(plan, receive->boxes, receive->sums);
    return -1;
  };
  int64_t all = bytes_of(steps[first]);
  if (all < 0) return 0;
  size_t end = first + 1;
  while (end < steps.size() && steps[end].index() == steps[first].index() &&
         (all += bytes_of(steps[end])) <= kWorthAMessage)
    ++end;
  return end - first;
}

int64_t listed_steps(const RankPlan& rank, size_t count) {
  int64_t listed = 0;
  for (size_t s = 0; s < count; ++s) {
    const auto* add = std::get_if<Add>(&rank.steps[s]);
    listed += add ? add->count : 1;
  }
  return listed;
}

int64_t block_floats(const Plan& whole) {
  int64_t rows = 0;
  for (const auto& order : whole.orders) {
    const std::vector<int64_t>& edges = order->tiles->kv_edges;
    for (size_t t = 1; t < edges.size(); ++t) rows = std::max(rows, edges[t] - edges[t - 1]);
  }
  return rows * (whole.problem.head_dim + whole.problem.head_dim_v);
}

std::span<const Operand> operands_of(Pass pass) {
  if (pass == Pass::forward) return kForward;
  return kBackward;
}

std::vector<Operand> operands_of(Pass pass, bool kv) {
  std::vector<Operand> operands;
  for (const Operand operand : operands_of(pass))
    if (on_kv_axis(operand) == kv) operands.push_back(operand);
  return operands;
}

}  // namespace dist

std::string_view to_string(Operand operand) {
  constexpr std::array<std::string_view, kOperands> kNames{"q",    "k",  "v",  "o", "lse",
                                                           "dout", "dq", "dk", "dv"};
  return kNames[static_cast<size_t>(operand)];
}

namespace {

/// Rows of the f32 sums of dQ that a memory of these rows has: of the kernels of Hopper whole
/// tiles, one for each gap among them.
int64_t rows_of_sums(const Plan& whole, const HeldRows& q) {
  if (whole.arithmetic != contract::kSm90 || whole.orders.empty()) return q.size();
  return local_q_tiles(whole, q, whole.problem.batch) * tile_of(whole).q;
}

/// The most bytes of messages that are packed, or taken apart, at once.
int64_t largest_messages(const DistPlan& plan, int32_t rank) {
  const std::vector<Step>& steps = plan.ranks[rank].steps;
  const auto bytes_of = [&](const auto& message) {
    return dist::aligned(dist::message_bytes(plan, message.boxes, message.sums));
  };
  int64_t largest = 0;
  for (size_t s = 0; s < steps.size();) {
    const size_t count = dist::copied_together(plan, steps, s);
    int64_t bytes = 0;
    for (size_t i = s; i < s + count; ++i)
      bytes += std::holds_alternative<Send>(steps[i]) ? bytes_of(std::get<Send>(steps[i]))
                                                      : bytes_of(std::get<Receive>(steps[i]));
    largest = std::max(largest, bytes);
    s += std::max<size_t>(count, 1);
  }
  return largest;
}

/// The most that a launch holds beside: numbers of each row and head, and turns of tiles.
int64_t largest_launch(const RankPlan& rank) {
  constexpr int64_t kOfARow = 16, kTurns = int64_t{1} << 20;
  int64_t rows = 0;
  for (const Room& room : rank.rooms)
    rows = std::max(rows, room.q.size() * (room.heads.end - room.heads.begin));
  return kOfARow * rows + kTurns;
}

}  // namespace

int64_t sent_bytes(const DistPlan& plan, int32_t rank) {
  int64_t bytes = 0;
  for (const Step& step : plan.ranks[rank].steps)
    if (const auto* send = std::get_if<Send>(&step))
      bytes += dist::message_bytes(plan, send->boxes, send->sums);
  return bytes;
}

int64_t memory_bytes(const DistPlan& plan, int32_t rank) {
  const RankPlan& own = plan.ranks[rank];
  const Problem& problem = plan.whole.problem;
  int64_t work_rows = 0, sum_rows = 0;  // of queries, times heads: held apart from home; summed up
  for (const Room& room : own.rooms) {
    const dist::WorkShape shape = dist::work_shape(room);
    work_rows += shape.rows * shape.heads;
    sum_rows += rows_of_sums(plan.whole, room.q) * shape.heads;
  }
  int64_t bytes = own.landing;
  for (const Operand operand : dist::operands_of(plan.whole.pass)) {
    int64_t held = own.home_q.size() * problem.q_heads + work_rows;
    if (dist::on_kv_axis(operand)) {
      const dist::WorkShape work = dist::work_shape(own, operand);
      held = own.home_kv.size() * problem.kv_heads + work.rows * work.heads;
    }
    bytes += dist::row_bytes(problem, operand) * held;
  }
  if (plan.whole.pass == Pass::forward) return bytes;
  if (problem.dtype != Dtype::f32)
    bytes += sum_rows * contract::head_dims_of(plan.whole.arithmetic, problem).qk *
             int64_t{sizeof(float)};
  return bytes + own.blocks * dist::block_floats(plan.whole) * int64_t{sizeof(float)};
}

int64_t peak_bytes(const DistPlan& plan, int32_t rank) {
  return memory_bytes(plan, rank) +
         std::max(largest_messages(plan, rank), largest_launch(plan.ranks[rank]));
}

}  // namespace verbatim
