// Small plans for tests.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "verbatim/schedule.h"

namespace verbatim::test {

/// A plan that gives `heads` heads the same order.
inline Plan plan_of(std::shared_ptr<const HeadOrder> order, int32_t heads,
                    std::string_view placement, int32_t workers) {
  Plan plan;
  plan.pass = order->pass;
  plan.orders = {order};
  plan.order_of_head.assign(heads, 0);
  const std::vector<std::shared_ptr<const HeadOrder>> all(heads, order);
  plan.placement = make_placement(placement, all, workers);
  return plan;
}

inline std::shared_ptr<const TileMap> square_tiles(bool causal, int32_t n) {
  const Mask mask = causal ? masks::causal(16 * n, 16 * n) : masks::full(16 * n, 16 * n);
  return std::make_shared<const TileMap>(mask.variants().front(), TileShape{16, 16});
}

/// m heads of n x n tiles by an order of the backward.
inline Plan square_plan(bool causal, int32_t heads, int32_t n, std::string_view order,
                        std::string_view placement, int32_t workers) {
  return plan_of(make_order(Pass::backward, order, square_tiles(causal, n), 1), heads, placement,
                 workers);
}

/// bf16 heads of 128.
inline Problem problem_of(const Mask& mask, int64_t q_heads, int64_t kv_heads, int64_t batch = 1) {
  return {.batch = batch,
          .q_heads = q_heads,
          .kv_heads = kv_heads,
          .q_len = mask.q_len(),
          .kv_len = mask.kv_len(),
          .head_dim = 128,
          .head_dim_v = 128,
          .dtype = Dtype::bf16};
}

}  // namespace verbatim::test
