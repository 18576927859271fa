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

/// Of all operands of the pass over so many rows and heads.
int64_t space_bytes(const Plan& whole, const HeldRows& q, const HeldRows& kv, int64_t q_heads,
                    int64_t kv_heads, bool q_side) {
  int64_t bytes = 0;
  for (const Operand operand : operands_of(whole.pass)) {
    const bool is_kv = on_kv_axis(operand);
    if (!is_kv && !q_side) continue;
    bytes +=
        row_bytes(whole.problem, operand) * (is_kv ? kv.size() * kv_heads : q.size() * q_heads);
  }
  return bytes;
}

}  // namespace

bool on_kv_axis(Operand operand) {
  return operand == Operand::k || operand == Operand::v || operand == Operand::dk ||
         operand == Operand::dv;
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
  for (const Step& step : plan.ranks[static_cast<size_t>(rank)].steps)
    if (const auto* send = std::get_if<Send>(&step))
      bytes += dist::message_bytes(plan, send->boxes, send->sums);
  return bytes;
}

int64_t memory_bytes(const DistPlan& plan, int32_t rank) {
  const RankPlan& own = plan.ranks[static_cast<size_t>(rank)];
  const Problem& problem = plan.whole.problem;
  const int64_t q_heads = own.q_heads.end - own.q_heads.begin;
  int64_t bytes = dist::space_bytes(plan.whole, own.home_q, own.home_kv, problem.q_heads,
                                    problem.kv_heads, true) +
                  dist::space_bytes(plan.whole, own.q, own.kv, q_heads,
                                    own.kv_heads.end - own.kv_heads.begin, !own.in_place);
  if (plan.whole.pass == Pass::forward) return bytes;
  if (problem.dtype != Dtype::f32)
    bytes += own.q.size() * q_heads * problem.head_dim * int64_t{sizeof(float)};
  return bytes + own.blocks * dist::block_floats(plan.whole) * int64_t{sizeof(float)};
}

}  // namespace verbatim
