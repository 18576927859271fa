#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <vector>

#include "core/file.h"
#include "core/json.h"
#include "core/names.h"
#include "schedule/machines.h"
#include "verbatim/error.h"
#include "verbatim/schedule.h"

namespace verbatim {
namespace {

constexpr const char* kOperation = "schedule.machine";

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
      ErrorCode::invalid_argument, kOperation, "no such machine",
      {"machine", std::string(spec),
       "h200, h200:WORKERS, h200:WORKERS,GHZ, cpu, paper:C,R or @file.json", std::move(nearest)});
}

/// The numbers behind the colon of `spec`, which commas separate.
std::vector<double> numbers(std::string_view spec, const char* nearest) {
  std::vector<double> found;
  const char* at = spec.data() + spec.find(':');
  const char* const end = spec.data() + spec.size();
  while (at != end) {  // at the colon, or at a comma
    const auto [stop, error] = std::from_chars(at + 1, end, found.emplace_back());
    if (error != std::errc() || (stop != end && *stop != ',') || !std::isfinite(found.back()) ||
        found.back() < 0)
      refuse(spec, nearest);
    at = stop;
  }
  return found;
}

template <class T>
void read(const nlohmann::json& value, const char* name, T& field) {
  if constexpr (std::is_same_v<T, std::string>) field = json_text(value, name, kOperation);
  if constexpr (std::is_same_v<T, bool>) field = json_bool(value, name, kOperation);
  if constexpr (std::is_same_v<T, int32_t>) field = json_int32(value, name, kOperation);
  if constexpr (std::is_same_v<T, int64_t>) field = json_int(value, name, kOperation);
  if constexpr (std::is_same_v<T, double>) field = json_number(value, name, kOperation);
}

/// Throws unless a machine could have these numbers.
void check(const Machine& machine) {
  constexpr double kMost = 1e9;  // so that sums of 2^28 visits stay whole numbers of cycles
  const auto require = [](bool ok, const char* name, double got, const char* least) {
    if (ok) return;
    throw Error(ErrorCode::invalid_argument, kOperation, fmt::format("'{}' is too small", name),
                {name, fmt::to_string(got), fmt::format("{} or more", least), least});
  };
  // Times are divided by these; without a bandwidth copies take none.
  require(machine.clock_ghz >= 1e-9, "clock_ghz", machine.clock_ghz, "1e-9");
  require(machine.bandwidth <= 0 || machine.bandwidth >= 1e-9, "bandwidth", machine.bandwidth,
          "1e-9");
  for_each_field(machine, [&]<class T>(const char* name, const T& field) {
    if constexpr (std::is_same_v<T, double>)
      // A visit that jitter makes shorter than none would end before it began.
      if (const bool share = name == std::string_view("jitter"); field > (share ? 1 : kMost))
        throw Error(ErrorCode::invalid_argument, kOperation, fmt::format("'{}' is too large", name),
                    {name, fmt::to_string(field), fmt::format("at most {}", share ? "1" : "1e9"),
                     share ? "1" : "1e9"});
    if constexpr (std::is_same_v<T, double> || std::is_same_v<T, int64_t>)
      require(field >= 0 || name == std::string_view("signal_latency"), name,
              static_cast<double>(field), "0");
  });
  // Both or none: costs are divided by them.
  const auto [q, kv] = machine.reference_tile;
  require(q > 0 || kv == 0, "reference_tile_q", static_cast<double>(q), "1");
  require(kv > 0 || q == 0, "reference_tile_kv", static_cast<double>(kv), "1");
  require(machine.workers >= 1, "workers", machine.workers, "1");
  require(machine.buffers >= 1, "buffers", machine.buffers, "1");
}

/// `machine` with other workers, and perhaps another clock.
Machine resized(Machine machine, std::string_view spec) {
  constexpr double kMostWorkers = 1 << 20;
  const std::vector<double> counts = numbers(spec, "h200:132");
  const double workers = counts[0];
  if (counts.size() > 2 || workers < 1 || workers > kMostWorkers ||
      workers != std::floor(workers) || counts.back() == 0)
    refuse(spec, "h200:132");
  machine.name = spec;
  machine.workers = static_cast<int32_t>(workers);
  if (counts.size() == 2) machine.clock_ghz = counts[1];
  check(machine);
  return machine;
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
  static const Machine h200 = machine_from_json(machines::kH200);
  static const Machine cpu = machine_from_json(machines::kCpu);
  if (spec == "h200") return h200;
  if (spec == "cpu") return cpu;
  if (spec.starts_with('@')) return parse_file(spec.substr(1), machine_from_json);
  if (spec.starts_with("h200:")) return resized(h200, spec);
  if (spec.starts_with("paper:")) {
    const std::vector<double> costs = numbers(spec, "paper:1,1");
    if (costs.size() != 2) refuse(spec, "paper:1,1");
    const Machine machine = Machine::paper(costs[0], costs[1], 1);
    check(machine);
    return machine;
  }
  refuse(spec, nearest_name(spec, std::array<std::string, 2>{"h200", "cpu"}));
}

std::string to_json(const Machine& machine) {
  nlohmann::ordered_json json;
  for_each_field(machine, [&](const char* name, const auto& field) { json[name] = field; });
  return json.dump(2);
}

Machine machine_from_json(const std::string& text) {
  const nlohmann::json json = parse_json(text, kOperation);
  if (!json.is_object())
    throw Error(ErrorCode::invalid_argument, kOperation, "a machine is a JSON object",
                {"machine", json.type_name(), "an object", "{}"});
  Machine machine;
  std::vector<std::string> known;
  for_each_field(machine, [&](const char* name, auto& field) {
    known.emplace_back(name);
    if (json.contains(name)) read(json.at(name), name, field);
  });
  for (const auto& [name, value] : json.items())
    if (std::ranges::find(known, name) == known.end())
      throw Error(ErrorCode::invalid_argument, kOperation, "no such field of a machine",
                  {"machine", name, "a field of Machine", nearest_name(name, known)});
  check(machine);
  return machine;
}

}  // namespace verbatim
