#include "backend/cpu/plans.h"

#include <algorithm>
#include <map>

namespace verbatim::test {
namespace {

struct Visit {
  int32_t tile, slice_begin, slice_count;
};

std::vector<Visit> visits(std::span<const TileRun> runs) {
  std::vector<Visit> list;
  for (const TileRun& run : runs)
    for (int32_t t = run.first; t < run.last; ++t)
      list.push_back({t, run.slice_begin, run.slice_count});
  return list;
}

std::shared_ptr<HeadOrder> backward_order(std::shared_ptr<const TileMap> tiles, int32_t group,
                                          Order kind) {
  auto order = std::make_shared<HeadOrder>();
  order->pass = Pass::backward;
  order->tiles = tiles;
  order->group = group;
  order->row_addends.assign(tiles->q_tiles(), 0);
  const int32_t n = tiles->kv_tiles(), m = tiles->q_tiles();
  // When tile j meets row i: the addends of a row are its visits in this sequence.
  const auto time = [&](int32_t i, int32_t j) {
    if (kind == Order::descending) return n - 1 - j;
    if (kind == Order::rotating)
      return ((i - j) % std::max(m, n) + std::max(m, n)) % std::max(m, n);
    return j;
  };
  std::map<std::pair<int32_t, int32_t>, int32_t> addend;
  for (int32_t i = 0; i < m; ++i) {
    std::vector<Visit> row = visits(tiles->row(i));
    std::sort(row.begin(), row.end(),
              [&](const Visit& a, const Visit& b) { return time(i, a.tile) < time(i, b.tile); });
    for (const Visit& visit : row) addend[{i, visit.tile}] = order->row_addends[i]++;
  }
  for (int32_t step = 0; step < n; ++step) {
    const int32_t j = kind == Order::descending ? n - 1 - step : step;
    std::vector<Visit> column = visits(tiles->column(j));
    if (kind == Order::rotating)
      std::sort(column.begin(), column.end(),
                [&](const Visit& a, const Visit& b) { return time(a.tile, j) < time(b.tile, j); });
    const bool split = kind == Order::split_group;
    for (int32_t h = 0; h < group; ++h) {
      if (h == 0 || split) {
        const int32_t chains = static_cast<int32_t>(order->chains.size());
        const int32_t runs = static_cast<int32_t>(order->runs.size());
        order->chains.push_back(
            {.tile = j, .run_begin = runs, .addend = split ? h : 0, .addends = split ? group : 1});
        order->tasks.push_back({chains, chains + 1});
      }
      for (const Visit& visit : column)
        order->runs.push_back({.q_head = h,
                               .first = visit.tile,
                               .count = 1,
                               .addend = addend[{visit.tile, j}],
                               .slice_begin = visit.slice_begin,
                               .slice_count = visit.slice_count});
      order->chains.back().run_end = static_cast<int32_t>(order->runs.size());
    }
  }
  return order;
}

std::shared_ptr<HeadOrder> forward_order(std::shared_ptr<const TileMap> tiles, int32_t group,
                                         int splits) {
  auto order = std::make_shared<HeadOrder>();
  order->pass = Pass::forward;
  order->tiles = tiles;
  order->group = group;
  for (int32_t h = 0; h < group; ++h) {
    for (int32_t i = 0; i < tiles->q_tiles(); ++i) {
      const std::vector<Visit> row = visits(tiles->row(i));
      for (int part = 0; part < splits; ++part) {
        const size_t begin = row.size() * part / splits, end = row.size() * (part + 1) / splits;
        Chain chain{.tile = i,
                    .run_begin = static_cast<int32_t>(order->runs.size()),
                    .q_head = h,
                    .addend = part,
                    .addends = splits};
        for (size_t v = begin; v < end; ++v)
          order->runs.push_back({.q_head = h,
                                 .first = row[v].tile,
                                 .count = 1,
                                 .slice_begin = row[v].slice_begin,
                                 .slice_count = row[v].slice_count});
        chain.run_end = static_cast<int32_t>(order->runs.size());
        const int32_t chains = static_cast<int32_t>(order->chains.size());
        order->chains.push_back(chain);
        order->tasks.push_back({chains, chains + 1});
      }
    }
  }
  return order;
}

template <class MakeOrder>
Plan plan_of(Pass pass, const Problem& problem, const Mask& mask, TileShape tile,
             MakeOrder&& make_order) {
  Plan plan;
  plan.arithmetic = "cpu.2";
  plan.pass = pass;
  plan.problem = problem;
  for (const HeadMask& head : mask.variants())
    plan.orders.push_back(make_order(std::make_shared<const TileMap>(head, tile)));
  for (int64_t b = 0; b < problem.batch; ++b)
    for (int64_t h = 0; h < problem.kv_heads; ++h) plan.order_of_head.push_back(mask.variant(b, h));
  plan.placement.name = "queue";
  std::vector<PlacedTask> tasks;
  for (int32_t head = 0; head < static_cast<int32_t>(plan.order_of_head.size()); ++head)
    for (int32_t t = 0; t < static_cast<int32_t>(plan.order(head).tasks.size()); ++t)
      tasks.push_back({head, t});
  plan.placement.tasks = std::move(tasks);
  plan.residency = verify(plan);
  return plan;
}

}  // namespace

Plan backward_plan(const Problem& problem, const Mask& mask, TileShape tile, Order order) {
  const int32_t group = static_cast<int32_t>(problem.group());
  return plan_of(Pass::backward, problem, mask, tile,
                 [&](auto tiles) { return backward_order(tiles, group, order); });
}

Plan forward_plan(const Problem& problem, const Mask& mask, TileShape tile, int splits) {
  const int32_t group = static_cast<int32_t>(problem.group());
  return plan_of(Pass::forward, problem, mask, tile,
                 [&](auto tiles) { return forward_order(tiles, group, splits); });
}

}  // namespace verbatim::test
