// Looks up what the present rules would choose among times that `regret` measured.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "draw.h"
#include "verbatim/schedule.h"

namespace {

using namespace verbatim;

int run(const std::string& file, uint64_t seed, double tflop, bool all) {
  std::ifstream in(file);
  double sum = 0, order_sum = 0, worst = 0;
  int found = 0, missing = 0;
  std::map<std::string, std::pair<double, int>> of_mask;
  for (std::string line; std::getline(in, line);) {
    const auto row = nlohmann::json::parse(line);
    const auto drawn = regret::draw(seed, row["index"], tflop * 1e12);
    PlanOptions options;
    options.machine = make_machine("h200");
    options.residents = 132;
    const Plan plan = make_plan(drawn.problem, drawn.mask, options);
    const std::string order = plan.orders.front()->name;
    std::string key = order + " | " + plan.placement.name;
    std::map<std::string, double> times;
    for (const auto& [name, ms] : row["ms"].items())
      if (name != "auto") times[name] = ms;
    const auto old = row["auto"][0].get<std::string>() + " | " + row["auto"][1].get<std::string>();
    times.emplace(old, row["ms"]["auto"].get<double>());
    double best = 1e9, best_of_order = 1e9;
    std::string who, best_place;
    const auto alias = [](std::string name) { return name; };
    for (const auto& [name, ms] : times) {
      if (ms < best) best = ms, who = name;
      if (name.starts_with(order + " |") && ms < best_of_order) best_of_order = ms, best_place = name;
    }
    // A section of more heads than there are is one of all.
    const auto heads = drawn.problem.batch * drawn.problem.kv_heads;
    if (!times.contains(key)) {
      const size_t colon = key.rfind(':');
      if (colon != std::string::npos && colon > key.find('|')) {
        const int64_t n = std::stoll(key.substr(colon + 1));
        for (const int64_t near : {n, int64_t{1} << (63 - __builtin_clzll(std::max<int64_t>(n, 1))),
                                   int64_t{2} << (63 - __builtin_clzll(std::max<int64_t>(n, 1)))}) {
          std::string other = key.substr(0, colon + 1) + std::to_string(near);
          if (near == 1) other = order + " | queue";
          if (times.contains(other)) key = alias(other);
        }
      }
    }
    (void)heads;
    if (!times.contains(key)) {
      ++missing;
      if (all) fmt::print("{:44} {} is not in the table\n", drawn.name, key);
      continue;
    }
    const double regret = times[key] / best - 1;
    ++found;
    sum += regret;
    order_sum += best_of_order / best - 1;
    worst = std::max(worst, regret);
    auto& [total, count] = of_mask[drawn.mask.name()];
    total += regret;
    ++count;
    if (all)
      fmt::print("{:44} {:7.3f} ms +{:5.1f} % (order {:5.1f} %)  {} -> {}, {}\n", drawn.name,
                 times[key], 100 * regret, 100 * (best_of_order / best - 1), key, best_place, who);
  }
  fmt::print("{} found, {} not; mean regret {:.3f}, of orders {:.3f}, worst {:.2f}\n", found, missing,
             sum / found, order_sum / found, worst);
  for (const auto& [name, total] : of_mask)
    fmt::print("  {:24} {:.3f}\n", name, total.first / total.second);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::string file;
  uint64_t seed = 1;
  double tflop = 6;
  bool all = false;
  CLI::App app("What the rules would choose among measured times");
  app.add_option("file", file)->required();
  app.add_option("--seed", seed);
  app.add_option("--tflop", tflop);
  app.add_flag("--all", all);
  CLI11_PARSE(app, argc, argv);
  return run(file, seed, tflop, all);
}
