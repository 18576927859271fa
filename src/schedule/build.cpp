// make_plan: classify tiles, order, place, verify.
#include <fmt/format.h>

#include <algorithm>

#include "verbatim/error.h"
#include "verbatim/schedule.h"

namespace verbatim {
namespace {

void check_lengths(const Problem& problem, const Mask& mask) {
  if (mask.q_len() == problem.q_len && mask.kv_len() == problem.kv_len) return;
  throw Error(ErrorCode::invalid_argument, "make_plan", "the mask has other lengths",
              {"mask", fmt::format("{} queries, {} keys", mask.q_len(), mask.kv_len()),
               fmt::format("{} queries, {} keys", problem.q_len, problem.kv_len), ""});
}

}  // namespace

TileShape default_tile(const Problem& problem) {
  const int64_t dim = std::max(problem.head_dim, problem.head_dim_v);
  if (dim <= 64) return {128, 128};
  return dim <= 128 ? TileShape{64, 128} : TileShape{64, 64};
}

Plan make_plan(const Problem& problem, const Mask& mask, const PlanOptions& options) {
  problem.validate();
  check_lengths(problem, mask);
  const TileShape tile =
      options.tile.q > 0 && options.tile.kv > 0 ? options.tile : default_tile(problem);
  const int32_t workers =
      options.workers > 0 ? options.workers : std::max(options.machine.workers, 1);

  Plan plan;
  plan.pass = options.pass;
  plan.problem = problem;
  plan.level = options.level;
  std::vector<int32_t> order_of_variant(mask.variants().size(), -1);
  for (int64_t b = 0; b < problem.batch; ++b) {
    for (int64_t h = 0; h < problem.kv_heads; ++h) {
      const auto variant = static_cast<size_t>(mask.variant(b, h));
      if (order_of_variant[variant] < 0) {
        const auto tiles = std::make_shared<const TileMap>(mask.variants()[variant], tile);
        order_of_variant[variant] = static_cast<int32_t>(plan.orders.size());
        const std::string name = options.order == "auto" ? "ascending" : options.order;
        plan.orders.push_back(
            make_order(plan.pass, name, tiles, static_cast<int32_t>(problem.group())));
      }
      plan.order_of_head.push_back(order_of_variant[variant]);
    }
  }
  std::vector<std::shared_ptr<const HeadOrder>> heads;
  for (const int32_t order : plan.order_of_head)
    heads.push_back(plan.orders[static_cast<size_t>(order)]);
  plan.placement =
      make_placement(options.placement == "auto" ? "queue" : options.placement, heads, workers);
  plan.residency = verify(plan);
  return plan;
}

}  // namespace verbatim
