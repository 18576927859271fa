// Clusters by name, and as JSON.
#include "verbatim/cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>

#include "core/file.h"
#include "core/json.h"
#include "core/names.h"
#include "dist/clusters.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

constexpr const char* kOperation = "dist.cluster";
using Json = nlohmann::json;

/// Throws unless `value` is an object with members of `known` alone.
void check_members(const Json& value, const char* argument,
                   std::initializer_list<std::string> known) {
  if (!value.is_object())
    throw Error(ErrorCode::invalid_argument, kOperation,
                fmt::format("{} is a JSON object", argument),
                {argument, value.type_name(), "an object", "{}"});
  const std::vector<std::string> names(known);
  for (const auto& [name, member] : value.items())
    if (std::ranges::find(names, name) == names.end())
      throw Error(ErrorCode::invalid_argument, kOperation,
                  fmt::format("no such member of {}", argument),
                  {argument, name, "a member of Cluster", nearest_name(name, names)});
}

/// A number that is 0, or large enough to divide by and small enough to add up.
void read(const Json& value, const char* name, double& field) {
  constexpr double kLeast = 1e-9, kMost = 1e9;
  if (!value.contains(name)) return;
  field = json_number(value.at(name), name, kOperation);
  if (field == 0 || (field >= kLeast && field <= kMost)) return;
  throw Error(ErrorCode::invalid_argument, kOperation,
              fmt::format("'{}' is too {}", name, field > kMost ? "large" : "small"),
              {name, fmt::to_string(field), "0, or 1e-9 to 1e9",
               field > kMost ? "1e9"
               : field > 0   ? "1e-9"
                             : "0"});
}

LinkSpeed link_from(const Json& value, const char* argument) {
  LinkSpeed link;
  if (!value.contains(argument)) return link;
  const Json& own = value.at(argument);
  check_members(own, argument, {"gb_per_s", "latency_us"});
  read(own, "gb_per_s", link.gb_per_s);
  read(own, "latency_us", link.latency_us);
  return link;
}

nlohmann::ordered_json to_json(const LinkSpeed& link) {
  return {{"gb_per_s", link.gb_per_s}, {"latency_us", link.latency_us}};
}

}  // namespace

Cluster make_cluster(std::string_view spec) {
  if (spec == "h200x8") return cluster_from_json(clusters::kH200x8);
  if (spec == "h200x8-hdr") return cluster_from_json(clusters::kH200x8Hdr);
  if (spec.starts_with('@')) return parse_file(spec.substr(1), cluster_from_json);
  throw Error(ErrorCode::invalid_argument, "dist.make_cluster", "no such cluster",
              {"cluster", std::string(spec), "h200x8, h200x8-hdr or @file.json",
               nearest_name(spec, std::array<std::string, 2>{"h200x8", "h200x8-hdr"})});
}

std::string to_json(const Cluster& cluster) {
  nlohmann::ordered_json json;
  json["name"] = cluster.name;
  json["machine"] = nlohmann::ordered_json::parse(to_json(cluster.machine));
  json["ranks_per_node"] = cluster.ranks_per_node;
  json["inside"] = to_json(cluster.inside);
  json["between"] = to_json(cluster.between);
  json["call_us"] = cluster.call_us;
  json["peer_call_us"] = cluster.peer_call_us;
  return json.dump(2);
}

Cluster cluster_from_json(const std::string& text) {
  const Json json = parse_json(text, kOperation);
  check_members(
      json, "cluster",
      {"name", "machine", "ranks_per_node", "inside", "between", "call_us", "peer_call_us"});
  Cluster cluster;
  if (json.contains("name")) cluster.name = json_text(json["name"], "name", kOperation);
  if (json.contains("machine")) {
    const Json& machine = json["machine"];
    cluster.machine = machine.is_string() ? make_machine(machine.get<std::string>())
                                          : machine_from_json(machine.dump());
  }
  if (json.contains("ranks_per_node"))
    cluster.ranks_per_node = json_int32(json["ranks_per_node"], "ranks_per_node", kOperation);
  if (cluster.ranks_per_node < 1)
    throw Error(ErrorCode::invalid_argument, kOperation, "'ranks_per_node' is too small",
                {"ranks_per_node", fmt::to_string(cluster.ranks_per_node), "1 or more", "1"});
  cluster.inside = link_from(json, "inside");
  cluster.between = link_from(json, "between");
  read(json, "call_us", cluster.call_us);
  cluster.peer_call_us = cluster.call_us;
  read(json, "peer_call_us", cluster.peer_call_us);
  return cluster;
}

}  // namespace verbatim
