#include "plan/accept.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "plan/check_mask.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

constexpr const char* kOperation = "attention.plans";

void check_problem(const Problem& plan, const Problem& problem) {
  const auto check = [](const char* name, const auto& got, const auto& expected) {
    if (got != expected)
      throw Error(ErrorCode::invalid_plan, kOperation,
                  fmt::format("the plan is of another {}", name),
                  {name, fmt::format("{}", got), fmt::format("{}", expected), ""});
  };
  check("batch", plan.batch, problem.batch);
  check("q_heads", plan.q_heads, problem.q_heads);
  check("kv_heads", plan.kv_heads, problem.kv_heads);
  check("q_len", plan.q_len, problem.q_len);
  check("kv_len", plan.kv_len, problem.kv_len);
  check("head_dim", plan.head_dim, problem.head_dim);
  check("head_dim_v", plan.head_dim_v, problem.head_dim_v);
  check("dtype", to_string(plan.dtype), to_string(problem.dtype));
  check("scale", plan.softmax_scale(), problem.softmax_scale());
  check("softcap", plan.softcap, problem.softcap);
  check("dropout", plan.dropout, problem.dropout);
}

/// Whether both classify tiles alike, which runs of plans refer to.
bool are_equal(const TileMap& a, const TileMap& b) {
  const auto same_start = [](const Sequence& x, const Sequence& y) {
    return x.q_begin == y.q_begin && x.k_begin == y.k_begin;
  };
  return a.shape == b.shape && a.q_edges == b.q_edges && a.kv_edges == b.kv_edges &&
         a.slices() == b.slices() && a.slice_ids == b.slice_ids && a.q_padding == b.q_padding &&
         a.k_padding == b.k_padding && std::ranges::equal(a.sequences, b.sequences, same_start);
}

void check_tiles(const Plan& plan, const Mask& mask) {
  const Problem& problem = plan.problem;
  check_mask(problem, mask, kOperation);
  std::set<std::pair<int32_t, int32_t>> known;  // orders, and the mask of whose heads they are
  for (int64_t head = 0; head < std::ssize(plan.order_of_head); ++head) {
    const int32_t variant = mask.variant(head / problem.kv_heads, head % problem.kv_heads);
    const int32_t order = plan.order_of_head[static_cast<size_t>(head)];
    if (!known.emplace(order, variant).second) continue;
    const TileMap& tiles = *plan.orders[static_cast<size_t>(order)]->tiles;
    if (!are_equal(tiles, TileMap(mask, static_cast<size_t>(variant), tiles.shape)))
      throw Error(
          ErrorCode::invalid_plan, kOperation, "the plan is of another mask",
          {"mask",
           fmt::format("other tiles, {} x {}, of head {}", tiles.shape.q, tiles.shape.kv, head),
           "those of the mask " + mask.name(), ""});
  }
}

}  // namespace

void check_sizes(const Plan& plan, const char* operation) {
  const Problem& p = plan.problem;
  const auto require = [&](const std::string& name, int64_t got, int64_t expected) {
    if (got != expected)
      throw Error(ErrorCode::invalid_plan, operation,
                  fmt::format("{} is that of another problem", name),
                  {name, fmt::to_string(got), fmt::to_string(expected), ""});
  };
  require("heads of order_of_head", std::ssize(plan.order_of_head), p.batch * p.kv_heads);
  for (size_t i = 0; i < plan.orders.size(); ++i) {
    const auto name = [&](const char* member) { return fmt::format("orders[{}].{}", i, member); };
    if (!plan.orders[i] || !plan.orders[i]->tiles)
      throw Error(ErrorCode::invalid_plan, operation, "there is no order",
                  {name("tiles"), "null", "an order with its tiles", ""});
    const HeadOrder& order = *plan.orders[i];
    require(name("group"), order.group, p.group());
    require(name("q_edges, the last"), order.tiles->q_edges.back(), p.q_len);
    require(name("kv_edges, the last"), order.tiles->kv_edges.back(), p.kv_len);
  }
}

Plan accept(Plan plan, const Problem& problem, const Mask& mask) {
  check_problem(plan.problem, problem);
  check_sizes(plan, kOperation);
  plan.residency = verify(plan);
  check_tiles(plan, mask);
  plan.problem = problem;
  plan.level = std::min(plan.level, Level::gpu_to_gpu);
  return plan;
}

}  // namespace verbatim
