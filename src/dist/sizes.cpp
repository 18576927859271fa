#include "dist/sizes.h"

#include <algorithm>
#include <array>

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
  if (on_kv_axis(operand)) return {rank.ended.size(), rank.kv_heads.end - rank.kv_heads.begin};
  return {rank.in_place ? 0 : rank.q.size(), rank.q_heads.end - rank.q_heads.begin};
}

int64_t row_bytes(const Problem& problem, Operand operand) {
  if (operand == Operand::lse) return sizeof(float);
  return (is_wide_v(operand) ? problem.head_dim_v : problem.head_dim) * size_of(problem.dtype);
}

int64_t sum_bytes(const DistPlan& plan, const CarriedSum& sum) {
  const auto edge = plan.whole.order(sum.head).tiles->kv_edges.begin() + sum.kv_tile;
  const Problem& problem = plan.whole.problem;
  return (edge[sum.count] - edge[0]) * (problem.head_dim + problem.head_dim_v) *
         int64_t{sizeof(float)};
}

int64_t message_bytes(const DistPlan& plan, std::span<const Box> boxes,
                      std::span<const CarriedSum> sums) {
  int64_t bytes = 0;
  for (const Box& box : boxes)
    bytes += row_bytes(plan.whole.problem, box.operand) *
             (box.range.rows.end - box.range.rows.begin) * (box.heads.end - box.heads.begin);
  for (const CarriedSum& sum : sums) bytes += sum_bytes(plan, sum);
  return bytes;
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

}  // namespace dist

std::string_view to_string(Operand operand) {
  constexpr std::array<std::string_view, kOperands> kNames{"q",    "k",  "v",  "o", "lse",
                                                           "dout", "dq", "dk", "dv"};
  return kNames[static_cast<size_t>(operand)];
}

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
  int64_t bytes = 0;
  for (const Operand operand : dist::operands_of(plan.whole.pass)) {
    const int64_t home = dist::on_kv_axis(operand) ? own.home_kv.size() * problem.kv_heads
                                                   : own.home_q.size() * problem.q_heads;
    const auto [rows, heads] = dist::work_shape(own, operand);
    bytes += dist::row_bytes(problem, operand) * (home + rows * heads);
  }
  if (plan.whole.pass == Pass::forward) return bytes;
  if (problem.dtype != Dtype::f32)
    bytes += own.q.size() * (own.q_heads.end - own.q_heads.begin) * problem.head_dim *
             int64_t{sizeof(float)};
  return bytes + own.blocks * dist::block_floats(plan.whole) * int64_t{sizeof(float)};
}

}  // namespace verbatim
