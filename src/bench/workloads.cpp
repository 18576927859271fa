#include "bench/workloads.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/workloads_text.h"

namespace verbatim::bench {
namespace {

using Json = nlohmann::ordered_json;

const Json& document() {
  static const Json found = Json::parse(kWorkloads);
  return found;
}

/// Masks as {"name", "params"}: a name stands for itself, {"names", "params"} for several.
Json masks_of(const Json& entries) {
  Json masks = Json::array();
  for (const Json& entry : entries) {
    if (entry.is_string()) masks.push_back({{"name", entry}, {"params", Json::object()}});
    if (entry.is_string()) continue;
    for (const Json& name : entry["names"])
      masks.push_back({{"name", name}, {"params", entry["params"]}});
  }
  return masks;
}

/// Every combination of one value from each list, by the lists' names.
std::vector<Json> combinations(const Json& lists) {
  std::vector<Json> all{Json::object()};
  for (const auto& [key, values] : lists.items()) {
    std::vector<Json> longer;
    for (const Json& one : all) {
      for (const Json& value : key == "mask" ? masks_of(values) : values) {
        longer.push_back(one);
        longer.back()[key] = value;
      }
    }
    all = std::move(longer);
  }
  return all;
}

Workload workload_of(const Json& set, const Json& chosen) {
  const int64_t head_dim = chosen["head_dim"], seqlen = chosen["seqlen"];
  int64_t q_heads = set.value("hidden", int64_t{0}) / head_dim, kv_heads = q_heads;
  if (chosen.contains("heads")) q_heads = chosen["heads"][0], kv_heads = chosen["heads"][1];
  int64_t batch = set.value("batch", int64_t{1});
  if (set.contains("tokens")) batch = std::max<int64_t>(1, set["tokens"].get<int64_t>() / seqlen);
  const std::string mask = chosen["mask"]["name"];
  std::string name = fmt::format(fmt::runtime(set["name"].get<std::string>()),
                                 fmt::arg("head_dim", head_dim), fmt::arg("mask", mask),
                                 fmt::arg("heads", fmt::format("{}:{}", q_heads, kv_heads)),
                                 fmt::arg("seqlen", seqlen));
  return {.name = std::move(name),
          .mask = mask,
          .params = chosen["mask"]["params"],
          .batch = batch,
          .seqlen = seqlen,
          .q_heads = q_heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim};
}

}  // namespace

const Protocols& protocols() {
  static const Protocols found = [] {
    const Json &rested = document()["protocols"]["rested"],
               &sustained = document()["protocols"]["sustained"];
    return Protocols{
        .rested = {.idle_s = rested["idle_s"],
                   .warm_up_calls = rested["warm_up_calls"],
                   .timed_calls = rested["timed_calls"]},
        .sustained = {.warm_up_s = sustained["warm_up_s"], .timed_s = sustained["timed_s"]}};
  }();
  return found;
}

std::vector<std::string> set_names() {
  std::vector<std::string> names;
  for (const auto& [name, set] : document()["sets"].items()) names.push_back(name);
  return names;
}

std::vector<Workload> workloads(const std::string& set) {
  const Json& found = document()["sets"][set];
  std::vector<Workload> all;
  for (const Json& chosen : combinations(found["each"])) all.push_back(workload_of(found, chosen));
  return all;
}

}  // namespace verbatim::bench
