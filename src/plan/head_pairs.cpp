#include "plan/head_pairs.h"

#include <algorithm>
#include <vector>

namespace verbatim {
namespace {

/// The chain of a task that has one.
const Chain* chain_of(const HeadOrder& order, size_t task) {
  if (task >= order.tasks.size()) return nullptr;
  const auto [begin, end] = order.tasks[task];
  return end - begin == 1 ? &order.chains[begin] : nullptr;
}

std::vector<RunView> visits_of(const HeadOrder& order, const Chain& chain) {
  std::vector<RunView> parts;
  order.for_each_part(chain, [&](int32_t, RunView runs) { parts.push_back(runs); });
  return parts;
}

bool is_in_pairs(const HeadOrder& order) {
  for (size_t task = 0; task < order.tasks.size(); task += 2) {
    const Chain *even = chain_of(order, task), *odd = chain_of(order, task + 1);
    if (!even || !odd || even->tile != odd->tile || even->q_head + 1 != odd->q_head ||
        visits_of(order, *even) != visits_of(order, *odd))
      return false;
  }
  return true;
}

}  // namespace

bool heads_in_pairs(const Plan& plan) {
  const std::vector<PlacedTask>& tasks = plan.placement.tasks.list();
  if (plan.pass != Pass::forward || !plan.placement.queue || tasks.size() % 2 != 0) return false;
  for (size_t i = 0; i < tasks.size(); i += 2) {  // each task is once in it: so the first is even
    const auto [head, task] = tasks[i];
    if (tasks[i + 1] != PlacedTask{head, task + 1}) return false;
  }
  return std::ranges::all_of(plan.orders, [](const auto& order) { return is_in_pairs(*order); });
}

}  // namespace verbatim
