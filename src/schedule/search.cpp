// Every order on the simulator, the fastest first.
#include <algorithm>
#include <array>
#include <chrono>

#include "schedule/orders/orders.h"
#include "verbatim/schedule.h"

namespace verbatim {
namespace {

constexpr std::array kPlacements{"queue",       "head_swizzled", "head_swizzled:4",
                                 "staggered:8", "longest_first", "spaced"};

/// The suffixes that make other plans than the plain order.
std::vector<std::string> splits(const OrderInfo& info, const Plan& plain) {
  if (plain.pass == Pass::backward) {
    const int64_t group = plain.problem.group();
    if (group == 1) return {};
    std::vector<std::string> suffixes{"/split"};
    if (group > 2) suffixes.emplace_back("/split:2");
    if (group > 4) suffixes.emplace_back("/split:4");
    if (order::takes_columns(info)) {
      suffixes.emplace_back("/even:2");
      if (group > 2) suffixes.emplace_back("/even:4");
    }
    return suffixes;
  }
  const bool any = std::ranges::any_of(plain.orders, [](const auto& order) {
    return std::ranges::any_of(
        order->chains, [&](const Chain& chain) { return order->visits(chain) > order::kSplit; });
  });
  return any ? std::vector<std::string>{"/split"} : std::vector<std::string>{};
}

/// The order under its best placement.
Candidate best_of(const Problem& problem, const Mask& mask, PlanOptions options) {
  const bool choose = options.placement == "auto";
  if (choose) options.placement = kPlacements[0];
  const auto begin = std::chrono::steady_clock::now();
  Candidate best{.plan = make_plan(problem, mask, options), .simulation = {}};
  best.plan_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  best.simulation = simulate(best.plan, options.machine);
  if (!choose) return best;
  std::vector<std::shared_ptr<const HeadOrder>> heads;
  for (const int32_t order : best.plan.order_of_head) heads.push_back(best.plan.orders[order]);
  for (size_t k = 1; k < kPlacements.size(); ++k) {
    Plan plan = best.plan;
    plan.placement = make_placement(kPlacements[k], heads, best.plan.placement.workers);
    plan.residency = verify(plan);
    if (plan.residency > plan.placement.workers) continue;
    const Simulation simulation = simulate(plan, options.machine);
    if (simulation.makespan >= best.simulation.makespan) continue;
    best.plan = std::move(plan);
    best.simulation = simulation;
  }
  return best;
}

}  // namespace

std::vector<Candidate> search(const Problem& problem, const Mask& mask,
                              const PlanOptions& options) {
  std::vector<Candidate> found;
  for (const OrderInfo& info : orders()) {
    if (info.pass != options.pass || info.level < options.level) continue;
    PlanOptions named = options;
    named.order = info.name;
    found.push_back(best_of(problem, mask, named));
    if (info.level == Level::not_guaranteed) continue;
    for (const std::string& suffix : splits(info, found.back().plan)) {
      named.order = info.name + suffix;
      found.push_back(best_of(problem, mask, named));
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const Candidate& a, const Candidate& b) {
    return a.simulation.makespan < b.simulation.makespan;
  });
  return found;
}

}  // namespace verbatim
