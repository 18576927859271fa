// DASH sections 3.2 to 3.4: the simulator in the paper's model against the paper's formulas.
#include <gtest/gtest.h>

#include <random>

#include "plans.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

using test::square_plan;

struct Costs {
  double c, r;
};
// Binary fractions, so that sums are exact. The paper's figures have r < c, like all hardware.
constexpr Costs kCosts[] = {{2, 1}, {4, 0.5}, {1, 1}, {3, 0}};

double makespan(const Plan& plan, Costs costs) {
  EXPECT_GE(verify(plan), 1);
  return simulate(plan, Machine::paper(costs.c, costs.r, plan.placement.workers)).makespan;
}

template <class F>
void for_each_size(F&& f) {
  for (const int32_t m : {1, 2, 3, 4, 6})
    for (const int32_t n : {1, 2, 3, 4, 8, 13, 16})
      for (const Costs costs : kCosts) f(m, n, costs);
}

TEST(ClosedForms, AscendingFull) {
  for_each_size([](int32_t m, int32_t n, Costs k) {
    EXPECT_EQ(makespan(square_plan(false, m, n, "ascending", "static", n), k),
              m * n * (k.c + k.r) + (n - 1) * k.r);
  });
}

TEST(ClosedForms, AscendingCausal) {
  for_each_size([](int32_t m, int32_t n, Costs k) {
    EXPECT_EQ(makespan(square_plan(true, m, n, "ascending", "static", n), k),
              m * n * (k.c + k.r) + (n - 1) * k.r);
  });
}

TEST(ClosedForms, DescendingCausalForEvenHeads) {
  for_each_size([](int32_t m, int32_t n, Costs k) {
    if (m % 2 != 0) return;
    EXPECT_EQ(makespan(square_plan(true, m, n, "descending", "alternating", n), k),
              m * (n + 1) * (k.c + k.r) / 2 + (n - 1) * k.r);
  });
}

TEST(ClosedForms, ShiftFullIsOptimal) {
  for_each_size([](int32_t m, int32_t n, Costs k) {
    EXPECT_EQ(makespan(square_plan(false, m, n, "shift", "static", n), k), m * n * (k.c + k.r));
  });
}

TEST(ClosedForms, SymmetricShiftCausalIsOptimal) {
  // A head occupies n/2 workers, so n workers run two heads at once (figure 7: n = 8, 4 workers).
  for_each_size([](int32_t m, int32_t n, Costs k) {
    if (n % 2 != 0) return;
    EXPECT_EQ(makespan(square_plan(true, m, n, "symmetric_shift", "static", n / 2), k),
              m * (n + 1) * (k.c + k.r));
    if (m % 2 != 0) return;
    EXPECT_EQ(makespan(square_plan(true, m, n, "symmetric_shift", "static", n), k),
              m * (n + 1) * (k.c + k.r) / 2);
  });
}

TEST(Simulation, IsTheCriticalPathOfTheGraphInThePaperModel) {
  for (const OrderInfo& info : orders()) {
    if (info.pass != Pass::backward) continue;
    for (const PlacementInfo& placement : placements()) {
      for (const bool causal : {false, true}) {
        // A share of several tasks that wait for later ones has no worker left to wait for.
        const std::string_view name = info.name;
        const bool rotates = name.ends_with("shift") || name == "matched";
        if (rotates && std::string_view(placement.name) == "persistent") continue;
        const Plan plan = square_plan(causal, 3, 6, info.name, placement.name, 6);
        if (verify(plan) > 6) continue;
        const Machine machine = Machine::paper(2, 1, 6);
        EXPECT_EQ(make_dag(plan, machine).critical_path(), simulate(plan, machine).makespan)
            << info.name << ", " << placement.name << ", causal " << causal;
      }
    }
  }
}

TEST(Simulation, NeverBeatsItsLowerBound) {
  for (const OrderInfo& info : orders()) {
    for (const bool causal : {false, true}) {
      const auto order = make_order(info.pass, info.name, test::square_tiles(causal, 20), 1);
      const Plan plan = test::plan_of(order, 4, "queue", 40);
      for (const char* name : {"paper:3,1", "h200"}) {
        const Machine machine = make_machine(name);
        const Simulation s = simulate(plan, machine);
        EXPECT_GE(s.makespan, s.lower_bound * (1 - 1e-12)) << info.name << ", " << name;
        EXPECT_EQ(s.makespan, simulate(plan, machine).makespan);
      }
    }
  }
}

TEST(Simulation, TurnsTooFewWorkersIntoAnError) {
  const Plan plan = square_plan(false, 1, 6, "shift", "queue", 5);
  EXPECT_EQ(verify(plan), 6);
  EXPECT_THROW(simulate(plan, Machine::paper(1, 1, 5)), Error);
}

// Lemma 1: n equal chains; adding zero-weight edges (without a cycle) keeps the critical path if
// and only if no edge goes from a deeper node to a shallower one.
struct Chains {
  Dag dag;
  std::vector<int32_t> depth;  // by node
};

Chains chains(int32_t count, const std::vector<double>& weights) {
  Chains c{.dag = {.nodes = 2, .edges = {}}, .depth = {0, static_cast<int32_t>(weights.size())}};
  for (int32_t k = 0; k < count; ++k) {
    int32_t last = 0;
    for (size_t d = 0; d < weights.size(); ++d) {
      const bool end = d + 1 == weights.size();
      const int32_t next = end ? 1 : c.dag.nodes++;
      if (!end) c.depth.push_back(static_cast<int32_t>(d) + 1);
      c.dag.edges.push_back({last, next, weights[d]});
      last = next;
    }
  }
  return c;
}

TEST(Lemma1, HoldsInBothDirections) {
  std::mt19937 rng(11);
  int kept = 0, grown = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<double> weights(2 + rng() % 5);
    for (double& w : weights) w = 1 + static_cast<double>(rng() % 7);
    Chains c = chains(2 + static_cast<int32_t>(rng() % 4), weights);
    const double length = c.dag.critical_path();
    const bool may_fall = rng() % 2 == 0;  // half of the rounds keep the lemma's condition
    bool falls = false;
    for (int edge = 0; edge < 6; ++edge) {
      const auto from = static_cast<int32_t>(rng() % static_cast<uint32_t>(c.dag.nodes));
      const auto to = static_cast<int32_t>(rng() % static_cast<uint32_t>(c.dag.nodes));
      const bool deeper = c.depth[from] > c.depth[to];
      if (from == to || (deeper && !may_fall)) continue;
      c.dag.edges.push_back({from, to, 0});
      try {
        c.dag.critical_path();
        falls = falls || deeper;
      } catch (const Error&) {
        c.dag.edges.pop_back();  // the lemma adds an edge only where no cycle arises
      }
    }
    ASSERT_EQ(c.dag.critical_path() == length, !falls);
    ++(falls ? grown : kept);
  }
  EXPECT_GT(kept, 100);
  EXPECT_GT(grown, 100);
}

}  // namespace
}  // namespace verbatim
