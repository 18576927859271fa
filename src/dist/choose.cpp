// Strategies side by side on a cluster: `auto` takes the fastest. None reaches an order.
#include <algorithm>
#include <utility>

#include "verbatim/cluster.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

Trial::Makespans makespans(const DistPlan& plan, const DistPlan& overlapped,
                           const Cluster& cluster) {
  const auto makespan = [&](const DistPlan& dealt, Transfers transfers) {
    return simulate(dealt, cluster, launch_times(dealt, cluster.machine), transfers).makespan;
  };
  return {makespan(plan, Transfers::in_turn), makespan(overlapped, Transfers::overlapped)};
}

}  // namespace

Trial try_strategy(const Plan& forward, const Plan& backward, const Mask& mask,
                   const DistOptions& options, const Cluster& cluster) {
  Trial trial{options, {}, {}, {}};
  try {
    const Sharding sharding = make_sharding(forward, backward, mask, trial.options);
    trial.options.shard = sharding.name;
    const auto both = [&](const Plan& pass) {
      const DistPlan in_turn = make_dist_plan(pass, sharding, trial.options);
      trial.options = in_turn.options;
      return makespans(in_turn, make_dist_plan(pass, sharding, overlapped_of(trial.options)),
                       cluster);
    };
    trial.forward = both(forward);
    trial.backward = both(backward);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument) throw;
    trial.refused = error.what();
  }
  return trial;
}

std::vector<Trial> try_strategies(const Plan& forward, const Plan& backward, const Mask& mask,
                                  const DistOptions& options, const Cluster& cluster) {
  std::vector<Trial> trials;
  for (const StrategyInfo& info : strategies()) {
    DistOptions own = options;
    own.strategy = info.name;
    const bool windows = own.strategy == "loongtrain";
    if (!windows) own.ring_window = 0;
    if (!windows && own.strategy != "usp") own.ulysses_size = 0;
    trials.push_back(try_strategy(forward, backward, mask, own, cluster));
  }
  return trials;
}

const Trial& fastest(std::span<const Trial> trials) {
  return *std::ranges::min_element(trials, {}, [](const Trial& trial) {
    return std::pair(!trial.refused.empty(), trial.in_turn());
  });
}

}  // namespace verbatim
