// Strategies side by side on a cluster: `auto` takes the fastest. None reaches an order.
#include <algorithm>
#include <utility>

#include "verbatim/cluster.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

Trial::Makespans makespans(const DistPlan& plan, const Cluster& cluster) {
  const LaunchTimes launches = launch_times(plan, cluster.machine);
  return {simulate(plan, cluster, launches, Transfers::in_turn).makespan,
          simulate(plan, cluster, launches, Transfers::overlapped).makespan};
}

}  // namespace

std::vector<Trial> try_strategies(const Plan& forward, const Plan& backward, const Mask& mask,
                                  const DistOptions& options, const Cluster& cluster) {
  std::vector<Trial> trials;
  for (const StrategyInfo& info : strategies()) {
    Trial& trial = trials.emplace_back();
    trial.options = options;
    trial.options.strategy = info.name;
    const bool windows = trial.options.strategy == "loongtrain";
    if (!windows) trial.options.ring_window = 0;
    if (!windows && trial.options.strategy != "usp") trial.options.ulysses_size = 0;
    try {
      const Sharding sharding = make_sharding(forward, backward, mask, trial.options);
      trial.options.shard = sharding.name;
      const DistPlan first = make_dist_plan(forward, sharding, trial.options);
      trial.options = first.options;
      trial.forward = makespans(first, cluster);
      trial.backward = makespans(make_dist_plan(backward, sharding, trial.options), cluster);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_argument) throw;
      trial.refused = error.what();
    }
  }
  return trials;
}

const Trial& fastest(std::span<const Trial> trials) {
  return *std::ranges::min_element(trials, {}, [](const Trial& trial) {
    return std::pair(!trial.refused.empty(), trial.in_turn());
  });
}

}  // namespace verbatim
