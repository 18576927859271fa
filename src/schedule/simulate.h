// What the simulator knows beyond its public totals.
#pragma once

#include <vector>

#include "verbatim/schedule.h"

namespace verbatim {

/// Cycles of the parts of a plan on a machine, without any waiting.
class Costs {
 public:
  Costs(const Plan& plan, const Machine& machine);

  double compute(const Run& run) const {
    return run.slice_count > 0 ? compute_ * machine_.compute_partial : compute_;
  }
  double reduce() const { return reduce_; }
  double store() const { return store_; }
  double task(const HeadOrder& order, const Task& task) const;

 private:
  const Machine& machine_;
  double compute_, reduce_, store_;
};

struct SimulatedRun {
  Simulation totals;
  std::vector<std::vector<PlacedTask>> tasks;  // what each worker did, in sequence
};

SimulatedRun simulate_run(const Plan& plan, const Machine& machine, Timeline* timeline);

}  // namespace verbatim
