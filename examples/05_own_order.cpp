// Lesson 5: an order of your own. Each KV tile's chain walks its query tiles the other way round;
// the plan is proved before it runs, and the sums of dK and dV have other bits.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "verbatim/verbatim.h"

using namespace verbatim;

namespace {

constexpr int64_t kLength = 1024, kHeads = 2, kDim = 64;

struct Tensors {
  std::vector<float> storage[9];
  std::vector<float> lse = std::vector<float>(kHeads * kLength);

  Tensors() {
    for (std::vector<float>& tensor : storage) tensor.resize(kLength * kHeads * kDim);
    uint32_t state = 1;
    for (int i = 0; i < 4; ++i)  // q, k, v and dout
      for (float& x : storage[i]) {
        state = state * 1664525u + 1013904223u;
        x = static_cast<float>(state >> 8) * 0x1p-23f - 1;
      }
  }
  TensorView view(int i) {
    return TensorView::dense(storage[i].data(), Dtype::f32, {1, kLength, kHeads, kDim});
  }
  /// dQ and dK.
  std::vector<std::vector<float>> gradients(const Attention& attention) {
    const RowView rows{lse.data(), {1, kHeads, kLength}};
    attention.forward({view(0), view(1), view(2), view(4), rows});
    attention.backward(
        {view(0), view(1), view(2), view(4), view(3), rows, view(5), view(6), view(7)});
    return {storage[5], storage[6]};
  }
};

/// The same visits and addends; each chain makes its visits in the opposite sequence.
std::shared_ptr<const HeadOrder> turned_round(const HeadOrder& rule) {
  HeadOrder order = rule;
  order.name = "turned round";
  order.runs.edit([&](std::vector<Run>& runs) {
    for (const Chain& chain : order.chains)
      std::reverse(runs.begin() + chain.run_begin, runs.begin() + chain.run_end);
    for (Run& run : runs) {
      const Run before = run;
      run.first = before.tile(before.count - 1);
      run.addend = before.addend_of(before.count - 1);
      run.step = -before.step;
      run.addend_step = -before.addend_step;
    }
  });
  return std::make_shared<const HeadOrder>(order);
}

}  // namespace

int main() {
  Problem problem;
  problem.q_heads = problem.kv_heads = kHeads;
  problem.q_len = problem.kv_len = kLength;
  const Mask mask = masks::causal(kLength, kLength);

  PlanOptions rule;
  rule.order = "ascending";
  rule.machine = make_machine("cpu");
  Plan own = make_plan(problem, mask, rule);
  const double before = simulate(own, rule.machine).makespan;
  for (auto& order : own.orders) order = turned_round(*order);
  const int32_t together = verify(own);  // throws, naming the tile, where it would hang or lose one
  std::printf("proved: %d worker(s) at once; makespan %.0f, ascending %.0f\n", together,
              simulate(own, rule.machine).makespan, before);

  AttentionOptions options;
  options.plans = {std::make_shared<const Plan>(own)};
  Tensors tensors;
  const Attention mine(problem, mask, options);
  options.plans.clear();
  options.plan.order = "ascending";
  const Attention usual(problem, mask, options);
  const auto a = tensors.gradients(mine), again = tensors.gradients(mine);
  const auto b = tensors.gradients(usual);
  std::printf("level %s, fingerprint %s\n",
              std::string(to_string(mine.plan(Pass::backward).level)).c_str(),
              mine.plan(Pass::backward).fingerprint().c_str());
  // Rows of dQ are summed as before, dK the other way round.
  const bool as_promised = a == again && a[0] == b[0] && a[1] != b[1];
  return as_promised ? 0 : 1;
}
