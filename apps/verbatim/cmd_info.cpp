#include <fmt/format.h>

#include <memory>

#include "backend/backend.h"
#include "core/threads.h"
#include "options.h"
#include "report/table.h"
#include "result.h"

namespace verbatim::app {
namespace {

struct InfoCommand {
  OutputOptions output;

  int run() const;
};

std::vector<std::string> cpu_features() {
  std::vector<std::string> features;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2")) features.emplace_back("avx2");
  if (__builtin_cpu_supports("fma")) features.emplace_back("fma");
  if (__builtin_cpu_supports("avx512f")) features.emplace_back("avx512f");
#endif
  return features;
}

/// "" when the backend takes the problem, else what it says.
std::string refusal(const Backend& backend, const Problem& problem) {
  try {
    backend.check(problem);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

/// Asks every device what it takes: the table cannot promise what the code refuses.
Json support(const Backend& backend) {
  Json rows = Json::array();
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    Json dims = Json::array();
    for (const int64_t dim : {64, 96, 128, 192, 256}) {
      Problem problem;
      problem.q_len = problem.kv_len = 256;
      problem.head_dim = problem.head_dim_v = dim;
      problem.dtype = dtype;
      if (refusal(backend, problem).empty()) dims.push_back(dim);
    }
    rows.push_back({{"device", backend.name()}, {"dtype", to_string(dtype)}, {"head_dims", dims}});
  }
  return rows;
}

int InfoCommand::run() const {
  Json result = new_result("info");
  result["cpu"] = {{"threads", core_count()}, {"features", cpu_features()}};
  result["devices"] = Json::array();
  result["support"] = Json::array();
  report::Table devices({{"device"}, {"state"}});
  for (const char* name : {"cpu", "cuda"}) {
    std::string state = "ready";
    try {
      const auto backend = make_backend(name);
      for (Json& row : support(*backend)) result["support"].push_back(row);
    } catch (const Error& error) {
      state = error.what();
    }
    result["devices"].push_back({{"name", name}, {"state", state}});
    devices.row({name, state});
  }

  report::Table supported({{"device"}, {"dtype"}, {"head dims tried and taken"}});
  for (const Json& row : result["support"]) {
    std::string dims;
    for (const Json& dim : row["head_dims"]) dims += (dims.empty() ? "" : ", ") + dim.dump();
    supported.row({row["device"], row["dtype"], dims});
  }
  result["orders"] = Json::array();
  report::Table order_table({{"order"}, {"pass"}, {"level"}, {""}});
  for (const OrderInfo& info : orders()) {
    const std::string pass(to_string(info.pass));
    result["orders"].push_back({{"name", info.name},
                                {"pass", pass},
                                {"level", to_string(info.level)},
                                {"summary", info.summary}});
    order_table.row({info.name, pass, std::string(to_string(info.level)), info.summary});
  }
  result["placements"] = Json::array();
  report::Table placement_table({{"placement"}, {""}});
  for (const PlacementInfo& info : placements()) {
    result["placements"].push_back({{"name", info.name}, {"summary", info.summary}});
    placement_table.row({info.name, info.summary});
  }
  result["arithmetics"] = Json::array();
  report::Table arithmetic_table({{"arithmetic"}, {"family"}, {""}});
  for (const ArithmeticInfo& info : arithmetics()) {
    result["arithmetics"].push_back(
        {{"id", info.id}, {"family", info.family}, {"summary", info.summary}});
    arithmetic_table.row({info.id, info.family, info.summary});
  }
  std::string masks_line;
  result["masks"] = Json::array();
  for (const char* name : masks::names()) {
    result["masks"].push_back(name);
    masks_line += fmt::format("  {}\n", name);
  }
  save(output, result);

  std::string features;
  for (const std::string& feature : cpu_features()) features += " " + feature;
  fmt::print("verbatim {}, contract {}, {} hardware threads,{}\n\n{}\n{}\n{}\n{}\n{}\nmasks\n{}",
             VERBATIM_VERSION, kContractVersion, core_count(),
             features.empty() ? " portable" : features, devices.str(), supported.str(),
             arithmetic_table.str(), order_table.str(), placement_table.str(), masks_line);
  return 0;
}

}  // namespace

void add_info(Command root, Action& action) {
  auto command = std::make_shared<InfoCommand>();
  const Command sub =
      root.add_subcommand("info", "What is here: devices, support table, orders, masks");
  sub.footer("Example: verbatim info");
  command->output.add_to(sub, false);
  sub.callback([command, &action] { action = [command] { return command->run(); }; });
}

}  // namespace verbatim::app
