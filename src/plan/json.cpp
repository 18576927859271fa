// The JSON form of a plan (docs/schema.md). Reading proves what it reads: every member has its type
// and range, the tiles are those of the mask, and verify() accepts the rest.
#include "core/json_node.h"

#include <fmt/format.h>

#include <algorithm>

#include "plan/accept.h"
#include "plan/whole_chains.h"
#include "verbatim/error.h"
#include "verbatim/plan.h"

namespace verbatim {
namespace {

using Json = nlohmann::ordered_json;  // writes keys in the order below

constexpr const char* kOperation = "plan.from_json";

// Records are arrays of their fields in declaration order: plans stay small on disk.
Json to_array(const Slice& s) { return {s.q_begin, s.q_end, s.k_begin, s.k_end, s.lo, s.hi}; }
Json to_array(const Sequence& s) { return {s.q_begin, s.k_begin}; }
Json to_array(const Task& t) { return {t.chain_begin, t.chain_end}; }
Json to_array(const PlacedTask& t) { return {t.head, t.task}; }
Json to_array(const Chain& c) {
  return {c.tile, c.run_begin, c.run_end, c.q_head, c.addend, c.addends, c.continues ? 1 : 0};
}
Json to_array(const Run& r) {
  return {r.q_head,      r.first,       r.count,       r.step,        r.addend,
          r.addend_step, r.slice_begin, r.slice_count, r.addend_every};
}

template <class T>
Json to_arrays(const std::vector<T>& records) {
  Json list = Json::array();
  for (const T& record : records) list.push_back(to_array(record));
  return list;
}

Json order_to_json(const HeadOrder& order) {
  const TileMap& tiles = *order.tiles;
  return {{"name", order.name},
          {"group", order.group},
          {"tile", {tiles.shape.q, tiles.shape.kv}},
          {"q_edges", tiles.q_edges},
          {"kv_edges", tiles.kv_edges},
          {"slices", to_arrays(tiles.slices())},
          {"sequences", to_arrays(tiles.sequences)},
          {"padding", {tiles.q_padding, tiles.k_padding}},
          {"runs", to_arrays(order.runs.all())},
          {"chains", to_arrays(order.chains)},
          {"tasks", to_arrays(order.tasks)},
          {"row_addends", order.row_addends}};
}

template <class T>
T read(const JsonNode& node);
template <>
int32_t read<int32_t>(const JsonNode& node) {
  return node.int32();
}
template <>
int64_t read<int64_t>(const JsonNode& node) {
  return node.int64();
}

template <>
Slice read<Slice>(const JsonNode& node) {
  const auto f = node.fields<int64_t, 6>();
  return {f[0], f[1], f[2], f[3], f[4], f[5]};
}
template <>
Sequence read<Sequence>(const JsonNode& node) {
  const auto f = node.fields<int64_t, 2>();
  return {.q_begin = f[0], .k_begin = f[1]};
}
template <>
Task read<Task>(const JsonNode& node) {
  const auto f = node.fields<int32_t, 2>();
  return {f[0], f[1]};
}
template <>
PlacedTask read<PlacedTask>(const JsonNode& node) {
  const auto f = node.fields<int32_t, 2>();
  return {f[0], f[1]};
}
template <>
Chain read<Chain>(const JsonNode& node) {
  const auto f = node.fields<int32_t, 7>();
  if (f[6] != 0 && f[6] != 1)
    throw Error(ErrorCode::invalid_argument, kOperation, "a flag is neither 0 nor 1",
                {node.item(6).name, fmt::to_string(f[6]), "0 or 1", "0"});
  return {f[0], f[1], f[2], f[3], f[4], f[5], f[6] != 0};
}
template <>
Run read<Run>(const JsonNode& node) {
  const auto f = node.fields<int32_t, 9>();
  return {f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7], f[8]};
}

template <class T>
std::vector<T> list(const JsonNode& node) {
  return node.items(read<T>);
}

/// Edges of the tiles of an axis: 0, then steps of 1 to `tile`. So every one comes out again when
/// all inner ones are given as breaks, and the text bounds their number.
std::vector<int64_t> edges(const JsonNode& node, int64_t tile) {
  const auto values = list<int64_t>(node);
  const auto fail = [&](const std::string& name, std::string got, std::string expected) {
    throw Error(ErrorCode::invalid_plan, kOperation,
                fmt::format("'{}' is no edge of a tiling", name),
                {name, std::move(got), std::move(expected), ""});
  };
  if (values.empty() || values[0] != 0)
    fail(node.name, values.empty() ? "an empty list" : fmt::to_string(values[0]), "0 first");
  for (size_t i = 1; i < values.size(); ++i) {
    const int64_t before = values[i - 1];
    if (values[i] <= before || values[i] - before > tile)
      fail(node.item(i).name, fmt::to_string(values[i]),
           fmt::format("{} to {}", before + 1, before + tile));
  }
  return values;
}

std::shared_ptr<const TileMap> read_tiles(const JsonNode& node) {
  const auto [q_tile, kv_tile] = node.member("tile").fields<int64_t, 2>();
  constexpr int64_t kMost = int64_t{1} << 30;
  if (std::min(q_tile, kv_tile) < 1 || std::max(q_tile, kv_tile) > kMost)
    throw Error(ErrorCode::invalid_plan, kOperation, fmt::format("'{}.tile' is no tile", node.name),
                {node.name + ".tile", fmt::format("{} x {}", q_tile, kv_tile),
                 "1 to 2^30 positions a side", ""});
  const auto inner = [](const std::vector<int64_t>& values) {
    return values.size() < 3 ? std::vector<int64_t>{}
                             : std::vector<int64_t>(values.begin() + 1, values.end() - 1);
  };
  const auto q_edges = edges(node.member("q_edges"), q_tile);
  const auto kv_edges = edges(node.member("kv_edges"), kv_tile);
  HeadMask mask{q_edges.back(), kv_edges.back(), list<Slice>(node.member("slices")), {}, {}};
  const JsonNode starts = node.member("sequences");
  const auto read = list<Sequence>(starts);
  for (size_t i = 1; i < read.size(); ++i) {
    mask.q_breaks.push_back(read[i].q_begin);
    mask.k_breaks.push_back(read[i].k_begin);
  }
  const auto [q_padding, k_padding] = node.member("padding").fields<int64_t, 2>();
  mask.q_padding = q_padding;
  mask.k_padding = k_padding;
  mask.validate();
  auto sequences = verbatim::sequences(mask);
  const auto same_start = [](const Sequence& a, const Sequence& b) {
    return a.q_begin == b.q_begin && a.k_begin == b.k_begin;
  };
  const auto are_edges = [](const std::vector<int64_t>& edges,
                            std::initializer_list<int64_t> positions) {
    return std::ranges::all_of(
        positions, [&](int64_t position) { return std::ranges::binary_search(edges, position); });
  };
  const bool known = std::ranges::all_of(sequences, [&](const Sequence& s) {
    return are_edges(q_edges, {s.q_begin, s.q.begin, s.core.begin, s.core.end, s.q.end}) &&
           are_edges(kv_edges, {s.k_begin, s.k.begin, s.k.end});
  });
  if (!known || !std::ranges::equal(sequences, read, same_start))
    throw Error(ErrorCode::invalid_plan, kOperation,
                fmt::format("'{}' are not those of the mask", starts.name),
                {starts.name, fmt::format("{} starts", read.size()),
                 "[0, 0], then edges between which every slice lies, and edges at their padding",
                 "[[0, 0]]"});
  mask.q_breaks = inner(q_edges);
  mask.k_breaks = inner(kv_edges);
  return std::make_shared<TileMap>(mask, TileShape{q_tile, kv_tile}, std::move(sequences));
}

HeadOrder read_order(const JsonNode& node, Pass pass) {
  require_known_members(node.value,
                        {"name", "group", "tile", "q_edges", "kv_edges", "slices", "sequences",
                         "padding", "runs", "chains", "tasks", "row_addends"},
                        kOperation);
  HeadOrder order;
  order.pass = pass;
  order.name = node.member("name").text();
  order.tiles = read_tiles(node);
  order.group = read<int32_t>(node.member("group"));
  order.runs = Runs(list<Run>(node.member("runs")));
  order.chains = list<Chain>(node.member("chains"));
  mark_pieces(order.chains);
  order.tasks = list<Task>(node.member("tasks"));
  order.row_addends = list<int32_t>(node.member("row_addends"));
  return order;
}

Placement read_placement(const JsonNode& node) {
  require_known_members(node.value, {"name", "queue", "workers", "worker_begin", "tasks"},
                        kOperation);
  const JsonNode queue = node.member("queue");
  return {node.member("name").text(), queue.boolean(), read<int32_t>(node.member("workers")),
          list<int32_t>(node.member("worker_begin")), list<PlacedTask>(node.member("tasks"))};
}

/// A plan of another version may have the bits that were meant then, but nobody knows.
void check_contract(const JsonNode& node) {
  const auto version = read<int32_t>(node);
  if (version != kContractVersion)
    throw Error(
        ErrorCode::unsupported, kOperation, "the plan is of another version of the contract",
        {node.name, fmt::to_string(version), fmt::to_string(kContractVersion), "a plan made anew"});
}

std::string read_arithmetic(const JsonNode& node) {
  const std::string id = node.text();
  std::vector<std::string> known;
  for (const ArithmeticInfo& info : arithmetics()) known.emplace_back(info.id);
  if (std::ranges::find(known, id) == known.end())
    throw Error(ErrorCode::unsupported, kOperation, "there is no such arithmetic",
                {node.name, id, fmt::format("{}", fmt::join(known, ", ")), known.front()});
  return id;
}

}  // namespace

std::string to_json(const Plan& plan) {
  Json orders = Json::array();
  for (const auto& order : plan.orders) orders.push_back(order_to_json(*order));
  const Placement& placement = plan.placement;
  const Json json = {{"pass", to_string(plan.pass)},
                     {"problem", Json::parse(to_json(plan.problem))},
                     {"level", to_string(plan.level)},
                     {"contract", kContractVersion},
                     {"arithmetic", plan.arithmetic},
                     {"fingerprint", plan.fingerprint()},
                     {"residency", plan.residency},
                     {"orders", std::move(orders)},
                     {"order_of_head", plan.order_of_head},
                     {"placement",
                      {{"name", placement.name},
                       {"queue", placement.queue},
                       {"workers", placement.workers},
                       {"worker_begin", placement.worker_begin},
                       {"tasks", to_arrays(placement.tasks.list())}}}};
  return json.dump();
}

Plan plan_from_json(const std::string& text) {
  const nlohmann::json json = parse_json(text, kOperation);
  if (json.is_object() && json.contains("whole") && json.contains("ranks"))
    throw Error(ErrorCode::invalid_argument, kOperation, "this is a distributed plan",
                {"plan", "the steps of every rank, as plan --world --dump writes them",
                 "the plan of one device, as plan --dump writes it without --world",
                 "its member whole, which is that plan"});
  require_known_members(json,
                        {"pass", "problem", "level", "contract", "arithmetic", "fingerprint",
                         "residency", "orders", "order_of_head", "placement"},
                        kOperation);
  const JsonNode root{json, "", kOperation};
  Plan plan;
  const std::string pass = root.member("pass").text();
  if (pass != "forward" && pass != "backward")
    throw Error(ErrorCode::invalid_argument, kOperation, "no such pass",
                {"pass", pass, "forward or backward", "backward"});
  plan.pass = pass == "forward" ? Pass::forward : Pass::backward;
  plan.problem = problem_from_json(root.member("problem").value.dump());
  plan.level = level_from_string(root.member("level").text());
  check_contract(root.member("contract"));
  plan.arithmetic = read_arithmetic(root.member("arithmetic"));
  const JsonNode orders = root.member("orders");
  for (size_t i = 0; i < orders.size(); ++i)
    plan.orders.push_back(std::make_shared<const HeadOrder>(read_order(orders.item(i), plan.pass)));
  plan.order_of_head = list<int32_t>(root.member("order_of_head"));
  plan.placement = read_placement(root.member("placement"));
  check_sizes(plan, kOperation);
  plan.residency = verify(plan);
  if (!json.contains("fingerprint")) return plan;
  const std::string fingerprint = root.member("fingerprint").text();
  if (fingerprint != plan.fingerprint())
    throw Error(ErrorCode::invalid_plan, kOperation, "the fingerprint is that of another plan",
                {"fingerprint", fingerprint, plan.fingerprint(), ""});
  return plan;
}

}  // namespace verbatim
