#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "bench/calibrate.h"
#include "core/file.h"
#include "options.h"
#include "report/format.h"
#include "report/table.h"
#include "result.h"

namespace verbatim::app {
namespace {

struct CalibrateCommand {
  OutputOptions output;
  std::string device = "cpu", dtype = "bf16", base, name, machine;
  int64_t head_dim = 128;

  int run() const;
};

int CalibrateCommand::run() const {
  require_one_of(dtype, "--dtype", {"f32", "bf16", "f16"});
  if (head_dim < 1 || head_dim > 256)
    fail("no head has such a size", {"--head-dim", fmt::to_string(head_dim), "1 to 256", "128"});
  const std::string base_name = base.empty() ? machine_of(device) : base;
  const Machine from = make_machine(base_name);
  const auto backend = make_backend(device);
  const auto on = bench::make_device(device);
  Progress progress;
  bench::Calibration found = bench::calibrate(
      *backend, *on, head_dim, dtype_from_string(dtype), from,
      [&](const std::string& what) { progress.say("measuring " + what + " ..."); });
  found.machine.name =
      name.empty() ? fmt::format("{} hd{} {}", on->facts().name, head_dim, dtype) : name;
  progress.say("");

  Json result = new_result("calibrate");
  result["device"] = describe(on->facts());
  result["machine"] = Json::parse(to_json(found.machine));
  result["base"] = base_name;
  result["measured"] = found.measured;
  save(output, result);
  if (!machine.empty()) write_file(machine, to_json(found.machine) + "\n");

  const Json before = Json::parse(to_json(from));
  report::Table table({{"field"}, {"value", report::Table::Align::right}, {""}});
  for (const auto& [field, value] : result["machine"].items()) {
    const bool measured = std::ranges::find(found.measured, field) != found.measured.end();
    table.row({field, value.is_number_float() ? report::number(value) : value.dump(),
               measured                 ? "measured"
               : value == before[field] ? "as " + base_name
                                        : "by definition"});
  }
  fmt::print("{}", table.str());
  return 0;
}

}  // namespace

void add_calibrate(Command root, Action& action) {
  auto command = std::make_shared<CalibrateCommand>();
  const Command sub =
      root.add_subcommand("calibrate", "Measure the machine that plans are made for");
  sub.footer(
      "Example: verbatim calibrate --head-dim 32 --machine machine.json\n"
      "The file is read by --machine @machine.json of other commands: it decides placements and\n"
      "predictions, never bits. One file speaks of one head dim and dtype. Times come from the\n"
      "kernels themselves; on a Hopper GPU, kernels of its own measure how tiles of dQ and flags\n"
      "travel. What cannot be seen from outside keeps the value of the base.");
  const auto add = [&](const char* option, auto& value, const char* help, const char* type) {
    return sub.add_option(option, value, help).type_name(type);
  };
  add("--device", command->device, "cpu, cuda or cuda:N", "NAME").capture_default_str();
  add("--head-dim", command->head_dim, "Of Q, K and V", "N").capture_default_str();
  add("--dtype", command->dtype, "f32, bf16 or f16", "NAME").capture_default_str();
  add("--base", command->base, "Machine for what is not measured (default: by device)", "NAME");
  add("--name", command->name, "Of the machine (default: device, head dim, dtype)", "TEXT");
  sub.add_option("--machine", command->machine, "Write the machine file")
      .group("Output")
      .type_name("FILE")
      .writes_file();
  command->output.add_to(sub, false);
  sub.callback([command, &action] { action = [command] { return command->run(); }; });
}

}  // namespace verbatim::app
