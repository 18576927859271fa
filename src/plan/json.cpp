#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "verbatim/error.h"
#include "verbatim/plan.h"

namespace verbatim {
namespace {

using Json = nlohmann::ordered_json;

// Records are arrays of their fields in declaration order: plans stay small on disk.
Json to_array(const Slice& s) { return {s.q_begin, s.q_end, s.k_begin, s.k_end, s.lo, s.hi}; }
Json to_array(const Task& t) { return {t.chain_begin, t.chain_end}; }
Json to_array(const PlacedTask& t) { return {t.head, t.task}; }
Json to_array(const Chain& c) {
  return {c.tile, c.run_begin, c.run_end, c.q_head, c.addend, c.addends};
}
Json to_array(const Run& r) {
  return {r.q_head,      r.first,       r.count,       r.step,        r.addend,
          r.addend_step, r.slice_begin, r.slice_count, r.addend_every};
}

template <class T>
T from_array(const Json& a);
template <>
Slice from_array<Slice>(const Json& a) {
  return {a.at(0), a.at(1), a.at(2), a.at(3), a.at(4), a.at(5)};
}
template <>
Task from_array<Task>(const Json& a) {
  return {a.at(0), a.at(1)};
}
template <>
PlacedTask from_array<PlacedTask>(const Json& a) {
  return {a.at(0), a.at(1)};
}
template <>
Chain from_array<Chain>(const Json& a) {
  return {a.at(0), a.at(1), a.at(2), a.at(3), a.at(4), a.at(5)};
}
template <>
Run from_array<Run>(const Json& a) {
  return {a.at(0), a.at(1), a.at(2), a.at(3), a.at(4), a.at(5), a.at(6), a.at(7), a.at(8)};
}

template <class T>
Json to_arrays(const std::vector<T>& records) {
  Json list = Json::array();
  for (const T& record : records) list.push_back(to_array(record));
  return list;
}
template <class T>
std::vector<T> from_arrays(const Json& list) {
  std::vector<T> records;
  for (const Json& record : list) records.push_back(from_array<T>(record));
  return records;
}

Json order_to_json(const HeadOrder& order) {
  const TileMap& tiles = *order.tiles;
  return {{"name", order.name},
          {"group", order.group},
          {"tile", {tiles.shape.q, tiles.shape.kv}},
          {"q_edges", tiles.q_edges},
          {"kv_edges", tiles.kv_edges},
          {"slices", to_arrays(tiles.slices)},
          {"runs", to_arrays(order.runs)},
          {"chains", to_arrays(order.chains)},
          {"tasks", to_arrays(order.tasks)},
          {"row_addends", order.row_addends}};
}

// Every inner edge is given as a break: the tiles come out as they were, whatever cut them.
std::shared_ptr<const TileMap> tiles_from_json(const Json& json) {
  const auto edges = [&](const char* key) {
    auto values = json.at(key).get<std::vector<int64_t>>();
    if (values.empty() || values.front() != 0 || !std::is_sorted(values.begin(), values.end()))
      throw Error(ErrorCode::invalid_plan, "plan.from_json", "edges run from 0 upwards",
                  {key, values.empty() ? "none" : fmt::to_string(values.front()), "0", ""});
    return values;
  };
  const auto inner = [](const std::vector<int64_t>& values) {
    return values.size() < 3 ? std::vector<int64_t>{}
                             : std::vector<int64_t>(values.begin() + 1, values.end() - 1);
  };
  const auto q_edges = edges("q_edges"), kv_edges = edges("kv_edges");
  const HeadMask mask{q_edges.back(), kv_edges.back(), from_arrays<Slice>(json.at("slices")),
                      inner(q_edges), inner(kv_edges)};
  mask.validate();
  const TileShape shape{json.at("tile").at(0), json.at("tile").at(1)};
  if (shape.q < 1 || shape.kv < 1)
    throw Error(ErrorCode::invalid_plan, "plan.from_json", "a tile has at least one position",
                {"tile", fmt::format("{} x {}", shape.q, shape.kv), "1 x 1 or more", "1 x 1"});
  return std::make_shared<const TileMap>(mask, shape);
}

HeadOrder order_from_json(const Json& json, Pass pass) {
  HeadOrder order;
  order.pass = pass;
  order.name = json.at("name").get<std::string>();
  order.tiles = tiles_from_json(json);
  order.group = json.at("group").get<int32_t>();
  order.runs = from_arrays<Run>(json.at("runs"));
  order.chains = from_arrays<Chain>(json.at("chains"));
  order.tasks = from_arrays<Task>(json.at("tasks"));
  order.row_addends = json.at("row_addends").get<std::vector<int32_t>>();
  return order;
}

void check_sizes(const Plan& plan) {
  const Problem& p = plan.problem;
  bool fits = static_cast<int64_t>(plan.order_of_head.size()) == p.batch * p.kv_heads;
  for (const auto& order : plan.orders)
    fits = fits && order->group == p.group() && order->tiles->q_edges.back() == p.q_len &&
           order->tiles->kv_edges.back() == p.kv_len;
  if (!fits)
    throw Error(ErrorCode::invalid_plan, "plan.from_json",
                "heads, group or lengths are not those of the problem");
}

}  // namespace

std::string to_json(const Plan& plan) {
  Json orders = Json::array();
  for (const auto& order : plan.orders) orders.push_back(order_to_json(*order));
  const Placement& placement = plan.placement;
  const Json json = {{"pass", plan.pass == Pass::forward ? "forward" : "backward"},
                     {"problem", Json::parse(to_json(plan.problem))},
                     {"level", to_string(plan.level)},
                     {"fingerprint", plan.fingerprint()},
                     {"residency", plan.residency},
                     {"orders", std::move(orders)},
                     {"order_of_head", plan.order_of_head},
                     {"placement",
                      {{"name", placement.name},
                       {"queue", placement.queue},
                       {"workers", placement.workers},
                       {"worker_begin", placement.worker_begin},
                       {"tasks", to_arrays(placement.tasks)}}}};
  return json.dump();
}

Plan plan_from_json(const std::string& text) {
  try {
    const auto json = Json::parse(text);
    Plan plan;
    const auto pass = json.at("pass").get<std::string>();
    if (pass != "forward" && pass != "backward")
      throw Error(ErrorCode::invalid_argument, "plan.from_json", "no such pass",
                  {"pass", pass, "forward or backward", "backward"});
    plan.pass = pass == "forward" ? Pass::forward : Pass::backward;
    plan.problem = problem_from_json(json.at("problem").dump());
    plan.level = level_from_string(json.at("level").get<std::string>());
    for (const Json& order : json.at("orders"))
      plan.orders.push_back(std::make_shared<const HeadOrder>(order_from_json(order, plan.pass)));
    plan.order_of_head = json.at("order_of_head").get<std::vector<int32_t>>();
    const Json& placement = json.at("placement");
    plan.placement = {placement.at("name"), placement.at("queue"), placement.at("workers"),
                      placement.at("worker_begin"), from_arrays<PlacedTask>(placement.at("tasks"))};
    check_sizes(plan);
    plan.residency = verify(plan);
    return plan;
  } catch (const nlohmann::json::exception& e) {
    throw Error(ErrorCode::invalid_argument, "plan.from_json", e.what());
  }
}

}  // namespace verbatim
