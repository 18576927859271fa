#include "dist/free_order.h"

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "plan/visits.h"

namespace verbatim::dist {
namespace {

/// Visits of a chain, by room.
std::map<int32_t, std::vector<Run>> runs_by_room(const HeadOrder& order, const Chain& chain,
                                                 const Owners& owners) {
  std::map<int32_t, std::vector<Run>> parts;
  for (int32_t r = chain.run_begin; r < chain.run_end; ++r) {
    const Run run = order.runs[r];
    const std::vector<Strip>& strips = owners.rows[run.q_head];
    for (int32_t begin = 0, end = 0; begin < run.count; begin = end) {
      const int32_t room = room_of(strips, run.tile(begin));
      while (end < run.count && room_of(strips, run.tile(end)) == room) ++end;
      append_visits(parts[room], run, begin, end);
    }
  }
  return parts;
}

/// The order of a head, parted.
std::shared_ptr<const HeadOrder> part_by_room(const HeadOrder& order, const Owners& owners) {
  auto parted = std::make_shared<HeadOrder>();
  parted->pass = order.pass;
  parted->name = order.name;
  parted->tiles = order.tiles;
  parted->group = order.group;
  parted->row_addends = order.row_addends;
  std::vector<int32_t> parts_of_tile(order.tiles->kv_tiles());
  const auto add = [&](int32_t tile, const std::vector<Run>& runs) {
    Chain chain{.tile = tile, .run_begin = static_cast<int32_t>(parted->runs.size())};
    for (const Run& run : runs) parted->runs.push_back(run);
    chain.run_end = static_cast<int32_t>(parted->runs.size());
    chain.addend = parts_of_tile[tile]++;
    const auto number = static_cast<int32_t>(parted->chains.size());
    parted->chains.push_back(chain);
    parted->tasks.push_back({number, number + 1});
  };
  for (const Chain& chain : WholeChains(order)) {
    const std::map<int32_t, std::vector<Run>> parts = runs_by_room(order, chain, owners);
    if (parts.empty()) add(chain.tile, {});
    for (const auto& [room, runs] : parts) add(chain.tile, runs);
  }
  for (Chain& chain : parted->chains) chain.addends = parts_of_tile[chain.tile];
  return parted;
}

}  // namespace

void free_orders(Plan& plan, const std::function<Owners(int32_t)>& owners_of) {
  std::vector<std::shared_ptr<const HeadOrder>> orders;
  std::map<std::pair<const HeadOrder*, Owners>, int32_t> known;
  plan.placement.queue = true;
  plan.placement.worker_begin.clear();
  std::vector<PlacedTask> tasks;
  for (int32_t head = 0; head < static_cast<int32_t>(plan.order_of_head.size()); ++head) {
    Owners owners = owners_of(head);
    const HeadOrder& order = plan.order(head);
    const auto [at, fresh] =
        known.try_emplace({&order, owners}, static_cast<int32_t>(orders.size()));
    if (fresh) orders.push_back(part_by_room(order, owners));
    plan.order_of_head[static_cast<size_t>(head)] = at->second;
    for (size_t task = 0; task < orders[static_cast<size_t>(at->second)]->tasks.size(); ++task)
      tasks.push_back({head, static_cast<int32_t>(task)});
  }
  plan.orders = std::move(orders);
  plan.placement.tasks = std::move(tasks);
}

}  // namespace verbatim::dist
