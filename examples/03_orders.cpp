// Lesson 3: an order fixes the bits, a placement only the time; a simulator tells them apart.
#include <cstdio>

#include "verbatim/verbatim.h"

int main() {
  using namespace verbatim;
  Problem problem;
  problem.q_heads = problem.kv_heads = 2;
  problem.q_len = problem.kv_len = 1024;
  const Mask mask = masks::causal(1024, 1024);

  PlanOptions options;
  options.machine = make_machine("paper:3,1");
  options.workers = 8;
  const auto plan = [&](const char* order, const char* placement) {
    options.order = order;
    options.placement = placement;
    Plan made = make_plan(problem, mask, options);
    const Simulation s = simulate(made, options.machine);
    std::printf("%-12s %-14s fingerprint %s, makespan %.0f, bound %.0f\n", order, placement,
                made.fingerprint().c_str(), s.makespan, s.lower_bound);
    return made;
  };
  const Plan a = plan("ascending", "queue");
  const Plan b = plan("ascending", "longest_first");
  const Plan c = plan("right_to_left", "queue");
  const bool as_promised = a.fingerprint() == b.fingerprint() && a.fingerprint() != c.fingerprint();
  return as_promised ? 0 : 1;
}
