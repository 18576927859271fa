#include "backend/cuda/random_problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <set>
#include <vector>

#include "core/random.h"
#include "mask/random_mask.h"
#include "schedule/orders/orders.h"

namespace verbatim::test {
namespace {

int64_t pick(Random& random, std::initializer_list<int64_t> values) {
  return values.begin()[random.between(0, static_cast<int64_t>(values.size()) - 1)];
}

std::string random_order(Random& random, Pass pass) {
  std::vector<std::string> names;
  for (const OrderInfo& info : orders()) {
    if (info.pass == pass && info.level > Level::not_guaranteed) names.emplace_back(info.name);
  }
  const auto last = static_cast<int64_t>(names.size()) - 1;
  const std::string name = names[random.between(0, last)];
  const bool columns = order::takes_columns(order::find(pass, name));
  const std::string rows =
      columns && random.chance(0.3) ? fmt::format("/rows:{}", random.between(1, 1000)) : "";
  if (!random.chance(0.4)) return name + rows;
  const bool in_parts = pass == Pass::backward && random.chance(0.5);
  if (!in_parts) return name + "/split" + rows;
  const bool even = columns && random.chance(0.5);
  return fmt::format("{}/{}:{}{}", name, even ? "even" : "split", random.between(2, 4), rows);
}

/// Strictly ascending, from 0 to `length`.
std::vector<int64_t> random_edges(Random& random, int64_t length) {
  std::set<int64_t> edges{0, length};
  for (int64_t i = random.between(0, 6); i > 0; --i) edges.insert(random.between(0, length));
  return {edges.begin(), edges.end()};
}

Mask random_mask(Random& random, Rng& rng, int64_t longest, int64_t kv_heads) {
  const auto length = [&] { return random.between(1, longest); };
  if (random.chance(0.08)) {
    return masks::uniform_block_sparse(length(), length(), length(), length(), 0.3, random.bits(),
                                       kv_heads);
  }
  if (random.chance(0.08)) {
    return masks::variable_block_sparse(random_edges(random, length()),
                                        random_edges(random, length()), 0.5, random.bits(),
                                        kv_heads);
  }
  const auto& patterns = static_patterns();
  const auto last = static_cast<int64_t>(patterns.size()) - 1;
  return random_case(patterns[random.between(0, last)], rng, longest).mask;
}

std::optional<double> random_scale(Random& random) {
  const double sign = random.chance(0.3) ? -1 : 1;
  if (random.chance(0.3)) return sign * static_cast<double>(random.between(1, 100)) / 200;
  if (random.chance(0.08)) return sign * static_cast<double>(random.between(5, 40));
  if (random.chance(0.06)) return sign * 1e-7;
  if (random.chance(0.02)) return 0;
  return std::nullopt;
}

}  // namespace

RandomProblem random_problem(uint64_t number) {
  Random random(number);
  Rng rng(random.bits());
  Problem p;
  p.batch = pick(random, {1, 1, 2, 3});
  p.kv_heads = pick(random, {1, 1, 2});
  p.q_heads = p.kv_heads * pick(random, {1, 1, 2, 3, 4, 8});
  p.head_dim = pick(random, {64, 128, 8 * random.between(1, 16), 8 * random.between(1, 32)});
  p.head_dim_v = random.chance(0.6) ? p.head_dim : 8 * random.between(1, 32);
  p.dtype = random.chance(0.5) ? Dtype::bf16 : Dtype::f16;
  p.scale = random_scale(random);
  if (random.chance(0.25)) p.softcap = static_cast<double>(random.between(1, 30));
  if (random.chance(0.25)) p.dropout = static_cast<double>(random.between(1, 90)) / 100;
  p.seed = random.bits();

  // As much to compute for many heads as for few: the reference is what takes the time.
  const int64_t heads = p.batch * p.q_heads;
  const int64_t longest =
      std::min(pick(random, {3, 70, 150, 300, 600, 1000}), int64_t{heads > 8 ? 300 : 1000});
  Mask mask = random_mask(random, rng, longest, p.kv_heads);
  if (random.chance(0.2)) {
    std::vector<int64_t> lengths(p.batch);
    for (int64_t& length : lengths) length = random.between(0, mask.kv_len());
    mask = mask.with_key_lengths(lengths);
  }
  p.q_len = mask.q_len();
  p.kv_len = mask.kv_len();

  const bool wide = std::max(p.head_dim, p.head_dim_v) > 128;
  TileShape forward_tile{pick(random, {64, 128, 80}), pick(random, {64, 128})};
  TileShape backward_tile{pick(random, {64, 128, 80}), wide ? 64 : pick(random, {64, 128})};
  if (random.chance(0.5)) {  // what the Hopper kernels take
    p.head_dim = pick(random, {64, 128, 192, 8 * random.between(1, 16)});
    p.head_dim_v = std::min<int64_t>(p.head_dim, 128);
    if (random.chance(0.3)) p.softcap = p.dropout = 0;
    forward_tile = backward_tile = {0, 0};
  }
  const std::string forward_order = random_order(random, Pass::forward);
  const std::string backward_order = random_order(random, Pass::backward);
  return {.problem = p,
          .mask = std::move(mask),
          .forward_order = forward_order,
          .backward_order = backward_order,
          .placement = random.chance(0.5) ? "auto" : "longest_first",
          .forward_tile = forward_tile,
          .backward_tile = backward_tile,
          .gap = random.chance(0.3) ? 8 * random.between(1, 3) : 0};
}

SharedPlan backward_plan(const RandomProblem& r, const GpuCase& c, const std::string& arithmetic) {
  constexpr int32_t kWorkers = 132, kMost = 64;
  const auto placed = [&](const std::string& placement) {
    return c.plan(Pass::backward, r.backward_order, r.backward_tile, placement, kWorkers,
                  arithmetic);
  };
  try {
    const SharedPlan plan = placed(r.placement);
    if (plan->residency <= kMost) return plan;
  } catch (const Error&) {
  }
  return placed("auto");
}

std::string RandomProblem::text() const {
  return fmt::format("{} {} {} {} {}", to_json(problem), mask.name(), forward_order, backward_order,
                     placement);
}

}  // namespace verbatim::test
