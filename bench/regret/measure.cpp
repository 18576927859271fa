// Times every order of a level, and placements of the best, on problems drawn from a seed.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <semaphore>

#include "backend/backend.h"
#include "backend/cuda/executor.h"
#include "bench/attention.h"
#include "draw.h"

namespace verbatim::regret {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  uint64_t seed = 1;
  int64_t first = 0, count = 60;
  double tflop = 3;
  int calls = 5;
  std::string json = "regret.jsonl";
  bool list = false, verbose = false;
};

/// Orders of the level `invariant` that may be told apart for a group of this size.
std::vector<std::string> order_names(int64_t group) {
  std::vector<std::string> names{"auto"};
  for (const OrderInfo& info : orders()) {
    if (info.pass != Pass::backward || info.level != Level::invariant) continue;
    const std::string name = info.name;
    names.push_back(name);
    if (group == 1) continue;
    const bool main = name == "descending" || name == "right_to_left" || name == "shift";
    if (main) names.push_back(name + "/split");
    for (int64_t parts = 2; main && parts < group; ++parts)
      if (group % parts == 0) names.push_back(fmt::format("{}/split:{}", name, parts));
    for (int64_t parts = 2; name == "descending" && parts <= group; ++parts)
      if (group % parts == 0) names.push_back(fmt::format("{}/even:{}", name, parts));
  }
  return names;
}

std::vector<std::string> placement_names(int64_t heads) {
  std::vector<std::string> names{"queue", "longest_first"};
  for (int64_t n = 2; n <= 64; n *= 2) {
    if (n / 2 >= heads) break;
    names.push_back(fmt::format("head_swizzled:{}", n));
    names.push_back(fmt::format("staggered:{}", n));
  }
  return names;
}

/// Plans of one problem, made in parallel.
std::vector<std::optional<Plan>> make_plans(const Drawn& drawn, std::span<const PlanOptions> asked) {
  std::counting_semaphore<> cores(14);
  std::vector<std::future<std::optional<Plan>>> made;
  for (const PlanOptions& options : asked) {
    made.push_back(std::async(std::launch::async, [&, options]() -> std::optional<Plan> {
      cores.acquire();
      std::optional<Plan> plan;
      try {
        plan = make_plan(drawn.problem, drawn.mask, options);
      } catch (const Error&) {
      }
      cores.release();
      return plan;
    }));
  }
  std::vector<std::optional<Plan>> plans;
  for (auto& one : made) plans.push_back(one.get());
  return plans;
}

int run(const Options& options) {
  for (int64_t i = options.first; options.list && i < options.first + options.count; ++i)
    fmt::print("{}\n", draw(options.seed, i, options.tflop * 1e12).name);
  if (options.list) return 0;
  auto owned = std::make_unique<cuda::CudaBackend>(0);
  owned->set_spin_limit(0.5);
  const auto& backend = owned;
  const auto device = bench::make_device("cuda");
  std::ofstream out(options.json, std::ios::app);
  PlanOptions usual;
  usual.machine = make_machine("h200");
  usual.residents = backend->residents();
  for (int64_t i = options.first; i < options.first + options.count; ++i) {
    const Drawn drawn = draw(options.seed, i, options.tflop * 1e12);
    const bench::Tensors tensors(*device, drawn.problem);
    PlanOptions forward = usual;
    forward.pass = Pass::forward;
    backend->forward(make_plan(drawn.problem, drawn.mask, forward), tensors.forward, {});
    double best = 1e9;
    const auto time = [&](const Plan& plan) {
      std::vector<double> ms;
      const auto call = [&] { backend->backward(plan, tensors.backward, {}); };
      if (options.verbose) {
        fmt::print("  {} | {} residency {}\n", plan.orders.front()->name, plan.placement.name, plan.residency);
        std::fflush(stdout);
      }
      device->time(call);
      for (int c = 0; c < options.calls; ++c) {
        ms.push_back(device->time(call));
        if (ms.back() > 1.4 * best) break;
      }
      backend->synchronize({});
      std::sort(ms.begin(), ms.end());
      best = std::min(best, ms[ms.size() / 2]);
      return ms[ms.size() / 2];
    };
    Json row{{"name", drawn.name}, {"index", i}, {"problem", Json::parse(to_json(drawn.problem))}};
    std::vector<std::pair<double, std::string>> ranking;
    const auto take = [&](const std::vector<PlanOptions>& asked) {
      const auto plans = make_plans(drawn, asked);
      for (size_t k = 0; k < asked.size(); ++k) {
        if (!plans[k] || plans[k]->residency > usual.residents) continue;
        const Plan& plan = *plans[k];
        std::string order = plan.orders.empty() ? "none" : plan.orders.front()->name;
        if (asked[k].order == "auto") {
          row["auto"] = {order, plan.placement.name};
          if (order == "auto") order = "mixed";
        }
        const std::string key = order + " | " + plan.placement.name;
        if (!row["ms"].contains(key)) {
          double ms = 1e9;
          try {
            ms = time(plan);
          } catch (const Error& error) {
            fmt::print("FAILED {}: {} residency {}: {}\n", drawn.name, key, plan.residency,
                       error.what());
            continue;
          }
          row["ms"][key] = ms;
        }
        if (asked[k].order == "auto") row["ms"]["auto"] = row["ms"][key];
        if (asked[k].placement == "auto" && asked[k].order != "auto")
          ranking.emplace_back(row["ms"][key], asked[k].order);
      }
    };
    std::vector<PlanOptions> asked;
    for (const std::string& name : order_names(drawn.problem.group())) {
      asked.push_back(usual);
      asked.back().order = name;
    }
    take(asked);
    // Every placement of the orders that are not far behind.
    asked.clear();
    for (const auto& [ms, order] : ranking) {
      if (ms > 2 * best) continue;
      for (const std::string& name : placement_names(drawn.problem.batch * drawn.problem.kv_heads)) {
        asked.push_back(usual);
        asked.back().order = order;
        asked.back().placement = name;
      }
    }
    take(asked);
    double least = 1e9;
    std::string who;
    for (const auto& [key, ms] : row["ms"].items())
      if (ms.get<double>() < least) least = ms, who = key;
    row["best"] = who;
    row["regret"] = row["ms"]["auto"].get<double>() / least - 1;
    fmt::print("{:44} {:8.3f} ms  +{:5.1f}%  {} -> {}\n", drawn.name, row["ms"]["auto"].get<double>(),
               100 * row["regret"].get<double>(), row["auto"].dump(), who);
    std::fflush(stdout);
    out << row.dump() << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace verbatim::regret

int main(int argc, char** argv) {
  verbatim::regret::Options options;
  CLI::App app("Times every order on problems drawn from a seed");
  app.add_option("--seed", options.seed);
  app.add_option("--first", options.first);
  app.add_option("--count", options.count);
  app.add_option("--tflop", options.tflop, "Most work of a backward");
  app.add_option("--calls", options.calls);
  app.add_option("--json", options.json);
  app.add_flag("--list", options.list, "Only name the problems");
  app.add_flag("--verbose", options.verbose);
  CLI11_PARSE(app, argc, argv);
  return verbatim::regret::run(options);
}
