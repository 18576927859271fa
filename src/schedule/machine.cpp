#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "schedule/machines.h"
#include "schedule/names.h"
#include "verbatim/error.h"
#include "verbatim/schedule.h"

namespace verbatim {
namespace {

using Json = nlohmann::ordered_json;

/// Calls f(name, field) for every field: the one list behind reading and writing.
template <class M, class F>
void for_each_field(M& m, F&& f) {
  f("name", m.name);
  f("workers", m.workers);
  f("overlap", m.overlap);
  f("ordered", m.ordered);
  f("compute", m.compute);
  f("forward", m.forward);
  f("reduce", m.reduce);
  f("compute_partial", m.compute_partial);
  f("reference_tile_q", m.reference_tile.q);
  f("reference_tile_kv", m.reference_tile.kv);
  f("reference_dim", m.reference_dim);
  f("buffers", m.buffers);
  f("store", m.store);
  f("signal_latency", m.signal_latency);
  f("chain_start", m.chain_start);
  f("chain_end", m.chain_end);
  f("chain_share", m.chain_share);
  f("launch", m.launch);
  f("jitter", m.jitter);
  f("l2_bytes", m.l2_bytes);
  f("bandwidth", m.bandwidth);
  f("clock_ghz", m.clock_ghz);
}

[[noreturn]] void refuse(std::string_view spec, std::string nearest) {
  throw Error(
      ErrorCode::invalid_argument, "schedule.make_machine", "no such machine",
      {"machine", std::string(spec), "h200, cpu, paper:C,R or @file.json", std::move(nearest)});
}

double number(std::string_view text, std::string_view spec) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= 0))
    refuse(spec, "paper:1,1");
  return value;
}

std::string read(const std::string& path) {
  std::ifstream file(path);
  if (!file)
    throw Error(ErrorCode::io, "schedule.make_machine", "the machine file cannot be read",
                {"machine", path, "a readable JSON file", ""});
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

Machine Machine::paper(double compute, double reduce, int32_t workers) {
  Machine machine;
  machine.name = fmt::format("paper:{},{}", compute, reduce);
  machine.workers = workers;
  machine.compute = compute;
  machine.reduce = reduce;
  return machine;
}

Machine make_machine(std::string_view spec) {
  constexpr std::string_view kPaper = "paper:";
  static const Machine h200 = machine_from_json(machines::kH200);
  static const Machine cpu = machine_from_json(machines::kCpu);
  if (spec == "h200") return h200;
  if (spec == "cpu") return cpu;
  if (spec.starts_with('@')) return machine_from_json(read(std::string(spec.substr(1))));
  if (spec.starts_with(kPaper)) {
    const std::string_view costs = spec.substr(kPaper.size());
    const size_t comma = costs.find(',');
    if (comma == std::string_view::npos) refuse(spec, "paper:1,1");
    return Machine::paper(number(costs.substr(0, comma), spec),
                          number(costs.substr(comma + 1), spec), 1);
  }
  refuse(spec, nearest_name(spec, std::array<std::string, 2>{"h200", "cpu"}));
}

std::string to_json(const Machine& machine) {
  Json json;
  for_each_field(machine, [&](const char* name, const auto& field) { json[name] = field; });
  return json.dump(2);
}

Machine machine_from_json(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    Machine machine;
    std::vector<std::string> known;
    for_each_field(machine, [&](const char* name, auto& field) {
      known.emplace_back(name);
      if (json.contains(name)) json.at(name).get_to(field);
    });
    for (const auto& [name, value] : json.items())
      if (std::find(known.begin(), known.end(), name) == known.end())
        throw Error(ErrorCode::invalid_argument, "schedule.machine", "no such field of a machine",
                    {"machine", name, "a field of Machine", nearest_name(name, known)});
    if (machine.workers < 1 || machine.buffers < 1)
      throw Error(
          ErrorCode::invalid_argument, "schedule.machine",
          "a machine has at least one worker and one buffer",
          {"machine", fmt::format("{} workers, {} buffers", machine.workers, machine.buffers),
           "1 or more", "1"});
    return machine;
  } catch (const nlohmann::json::exception& e) {
    throw Error(ErrorCode::invalid_argument, "schedule.machine", e.what());
  }
}

}  // namespace verbatim
