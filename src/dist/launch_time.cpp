// How long launches take on a machine: their chains dealt to its workers, without waits.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dist/passes.h"
#include "schedule/simulate.h"
#include "verbatim/cluster.h"

namespace verbatim {
namespace {

/// Workers that take what comes as soon as they are free.
class Workers {
 public:
  explicit Workers(int32_t count)
      : free_(std::greater<>(), std::vector<double>(static_cast<size_t>(count))) {}

  void take(double cycles) {
    const double end = free_.top() + cycles;
    free_.pop();
    free_.push(end);
    end_ = std::max(end_, end);
  }
  double end() const { return end_; }

 private:
  std::priority_queue<double, std::vector<double>, std::greater<>> free_;
  double end_ = 0;
};

double seconds(const Machine& machine, double cycles) { return cycles / (machine.clock_ghz * 1e9); }

class Launches {
 public:
  Launches(const Plan& whole, const Machine& machine) : machine_(machine), costs_(whole, machine) {}

  /// Of the chains of all heads, dealt to the workers at once. Heads with equal orders share their
  /// parts.
  double cycles(const Compute& compute) {
    std::vector<const OrderPart*> parts;
    for (const HeadPart& own : compute.heads) parts.push_back(own.part.get());
    const auto [at, fresh] = known_.try_emplace(std::move(parts));
    if (fresh) at->second = count(at->first);
    return at->second;
  }

 private:
  double count(const std::vector<const OrderPart*>& parts) {
    Workers workers(machine_.workers);
    for (const OrderPart* part : parts)
      for (const double cycles : chains_of(*part)) workers.take(cycles);
    return machine_.launch + workers.end();
  }

  /// Cycles of each chain of a part.
  const std::vector<double>& chains_of(const OrderPart& part) {
    const auto [at, fresh] = parts_.try_emplace(&part);
    if (!fresh) return at->second;
    auto& chains = chains_[part.whole.get()];
    if (chains.size() == 0) chains = WholeChains(*part.whole);
    for (const Stretch& stretch : part.stretches)
      for (int32_t c = stretch.chain; c < stretch.chain + stretch.count; ++c)
        at->second.push_back(cycles(*part.whole, chains[c], stretch));
    return at->second;
  }

  double cycles(const HeadOrder& order, const Chain& chain, const Stretch& stretch) {
    const bool in_series = order.pass == Pass::backward && !machine_.overlap;
    double cycles = machine_.chain_start + machine_.chain_end;
    dist::Passes passes;
    for (int32_t r = chain.run_begin; r < chain.run_end; ++r) {
      const Run& run = order.runs[r];
      const int32_t pass = passes.next(run);
      const int32_t visits = dist::visits_before(run, pass, stretch.end) -
                             dist::visits_before(run, pass, stretch.begin);
      cycles += visits * (costs_.compute(run) + (in_series ? costs_.reduce() : 0));
    }
    return cycles;
  }

  const Machine& machine_;
  Costs costs_;
  std::map<std::vector<const OrderPart*>, double> known_;
  std::unordered_map<const OrderPart*, std::vector<double>> parts_;
  std::map<const HeadOrder*, WholeChains> chains_;
};

}  // namespace

LaunchTimes launch_times(const DistPlan& plan, const Machine& machine) {
  Launches launches(plan.whole, machine);
  LaunchTimes times(plan.ranks.size());
  for (size_t r = 0; r < plan.ranks.size(); ++r)
    for (const Step& step : plan.ranks[r].steps)
      if (const auto* compute = std::get_if<Compute>(&step))
        times[r].push_back(seconds(machine, launches.cycles(*compute)));
  return times;
}

double device_seconds(const Plan& plan, const Machine& machine) {
  const Costs costs(plan, machine);
  std::map<const HeadOrder*, std::vector<double>> tasks;  // cycles of each
  for (const auto& order : plan.orders)
    for (const Task& task : order->tasks) tasks[order.get()].push_back(costs.task(*order, task));
  Workers workers(machine.workers);
  for (const PlacedTask& placed : plan.placement.tasks)
    workers.take(tasks[&plan.order(placed.head)][placed.task]);
  return seconds(machine, machine.launch + workers.end());
}

}  // namespace verbatim
