#include "fuzz/random_problem.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/reference/compare.h"
#include "core/random.h"
#include "mask/random_mask.h"
#include "schedule/orders/orders.h"
#include "verbatim/schedule.h"

namespace verbatim::test {
namespace {

bool chance(Rng& rng, int64_t one_in) { return uniform(rng, 1, one_in) == 1; }

template <class T>
T pick(Rng& rng, std::initializer_list<T> values) {
  return values.begin()[uniform(rng, 0, static_cast<int64_t>(values.size()) - 1)];
}

double uniform_real(Rng& rng, double low, double high) {
  return low + (high - low) * static_cast<double>(rng() >> 11) * 0x1p-53;
}

std::vector<int64_t> random_edges(Rng& rng, int64_t length) {
  std::vector<int64_t> edges{0};
  while (edges.back() < length)
    edges.push_back(std::min(length, edges.back() + uniform(rng, 1, length / 2 + 1)));
  return edges;
}

Mask block_sparse(Rng& rng, int64_t longest, int64_t kv_heads) {
  const int64_t q_len = uniform(rng, 1, longest), kv_len = uniform(rng, 1, longest);
  const double density = uniform_real(rng, 0.05, 1);
  if (chance(rng, 2))
    return masks::uniform_block_sparse(q_len, kv_len, uniform(rng, 1, q_len + 8),
                                       uniform(rng, 1, kv_len + 8), density, rng(), kv_heads);
  return masks::variable_block_sparse(random_edges(rng, q_len), random_edges(rng, kv_len), density,
                                      rng(), kv_heads);
}

Mask random_mask(Rng& rng, const Problem& p) {
  // Most masks are small; some span many tiles.
  const int64_t longest = pick<int64_t>(rng, {3, 20, 80, 80, 150, 300, 600});
  const auto& patterns = static_patterns();
  Mask mask =
      chance(rng, 7)
          ? block_sparse(rng, longest, chance(rng, 2) ? 1 : p.kv_heads)
          : random_case(patterns[uniform(rng, 0, std::ssize(patterns) - 1)], rng, longest).mask;
  if (chance(rng, 6)) {
    const int64_t window = uniform(rng, 0, longest);
    mask = mask.intersect(masks::full_sliding_window(mask.q_len(), mask.kv_len(), window));
  }
  if (chance(rng, 5)) {
    std::vector<int64_t> lengths(p.batch), q_lengths(p.batch);
    for (int64_t& length : lengths) length = uniform(rng, 0, mask.kv_len());
    for (int64_t& length : q_lengths) length = uniform(rng, 0, mask.q_len());
    mask = chance(rng, 2)
               ? mask.with_key_lengths(lengths)
               : mask.with_lengths(q_lengths, lengths, chance(rng, 2) ? Side::left : Side::right);
  }
  return mask;
}

Problem random_sizes(Rng& rng) {
  Problem p;
  p.batch = pick<int64_t>(rng, {1, 1, 2, 3});
  p.kv_heads = pick<int64_t>(rng, {1, 1, 2, 3});
  p.q_heads = p.kv_heads * pick<int64_t>(rng, {1, 1, 2, 3, 4});
  const auto dim = [&] {
    return pick<int64_t>(rng, {uniform(rng, 1, 24), uniform(rng, 1, 96), 8, 32, 64, 128,
                               chance(rng, 4) ? uniform(rng, 129, 256) : 40});
  };
  p.head_dim = dim();
  p.head_dim_v = chance(rng, 2) ? p.head_dim : dim();
  p.dtype = pick(rng, {Dtype::f32, Dtype::bf16, Dtype::f16});
  if (chance(rng, 3)) p.scale = uniform_real(rng, -1, 1);
  if (chance(rng, 40)) p.scale = 0;
  // Scores far beyond the range of exp.
  if (chance(rng, 12)) p.scale = uniform_real(rng, 5, 40);
  if (chance(rng, 4)) p.softcap = uniform_real(rng, 0.3, 30);
  if (chance(rng, 4)) p.dropout = uniform_real(rng, 0.01, 0.9);
  p.seed = rng();
  return p;
}

enum class Role {
  input,    // may be expanded
  queries,  // ... but not over the length: equal rows add up one rounding, not many
  output,
};

// Any order of the first three dimensions, with gaps.
GuardedTensor random_layout(Rng& rng, Dtype dtype, std::array<int64_t, 4> shape, Role role) {
  std::array<int, 3> axes{2, 1, 0};  // innermost first
  if (chance(rng, 3)) std::swap(axes[uniform(rng, 0, 1)], axes[uniform(rng, 1, 2)]);
  std::array<int64_t, 4> stride{0, 0, 0, 1};
  int64_t next = shape[3];
  for (int axis : axes) {
    if (chance(rng, 3)) next += uniform(rng, 1, 9);
    stride[axis] = next;
    next *= std::max<int64_t>(1, shape[axis]);
  }
  if (role != Role::output && chance(rng, 8)) {
    const int64_t axis = uniform(rng, 0, 2);
    stride[role == Role::queries && axis == 1 ? 0 : axis] = 0;
  }
  return GuardedTensor(dtype, shape, stride);
}

TileShape random_tile(Rng& rng) {
  if (chance(rng, 3)) return {uniform(rng, 1, 150), uniform(rng, 1, 150)};
  return {pick<int64_t>(rng, {16, 64, 128}), pick<int64_t>(rng, {16, 64, 128})};
}

std::string random_order(Rng& rng, Pass pass) {
  std::vector<std::string> names;
  for (const OrderInfo& info : orders())
    if (info.pass == pass && info.level > Level::not_guaranteed) names.push_back(info.name);
  std::string name = names[uniform(rng, 0, std::ssize(names) - 1)];
  const bool columns = order::takes_columns(order::find(pass, name));
  const std::string rows =
      columns && chance(rng, 3) ? fmt::format("/rows:{}", uniform(rng, 1, 200)) : "";
  if (!chance(rng, 3)) return name + rows;
  const bool in_parts = pass == Pass::backward && chance(rng, 2);
  if (!in_parts) return name + "/split" + rows;
  const bool even = columns && chance(rng, 2);
  return fmt::format("{}/{}:{}{}", name, even ? "even" : "split", uniform(rng, 2, 4), rows);
}

std::string random_placement(Rng& rng) {
  return placements()[uniform(rng, 0, std::ssize(placements()) - 1)].name;
}

}  // namespace

RandomProblem RandomProblem::make(uint64_t seed, uint64_t number) {
  Rng rng(random_bits(seed, number));
  Problem p = random_sizes(rng);
  Mask mask = random_mask(rng, p);
  p.q_len = mask.q_len();
  p.kv_len = mask.kv_len();
  const std::array<int64_t, 4> q_shape{p.batch, p.q_len, p.q_heads, p.head_dim},
      k_shape{p.batch, p.kv_len, p.kv_heads, p.head_dim},
      v_shape{p.batch, p.kv_len, p.kv_heads, p.head_dim_v},
      o_shape{p.batch, p.q_len, p.q_heads, p.head_dim_v};
  const auto input = [&](auto shape) { return random_layout(rng, p.dtype, shape, Role::input); };
  const auto output = [&](auto shape) { return random_layout(rng, p.dtype, shape, Role::output); };
  RandomProblem r{.problem = p,
                  .mask = std::move(mask),
                  .forward_tile = random_tile(rng),
                  .backward_tile = random_tile(rng),
                  .forward_order = random_order(rng, Pass::forward),
                  .backward_order = random_order(rng, Pass::backward),
                  .forward_placement = random_placement(rng),
                  .backward_placement = random_placement(rng),
                  .threads = static_cast<int>(uniform(rng, 1, 4)),
                  .workers = static_cast<int>(uniform(rng, 1, 12)),
                  .fill_seed = rng(),
                  .poisoned = std::nullopt,
                  .q = random_layout(rng, p.dtype, q_shape, Role::queries),
                  .k = input(k_shape),
                  .v = input(v_shape),
                  .dout = input(o_shape),
                  .o = output(o_shape),
                  .lse = GuardedTensor::rows({p.batch, p.q_heads, p.q_len}),
                  .dq = output(q_shape),
                  .dk = output(k_shape),
                  .dv = output(v_shape)};
  uint64_t stream = r.fill_seed;
  for (const GuardedTensor* tensor : {&r.q, &r.k, &r.v, &r.dout})
    fill_normal(tensor->view(), stream++);

  const int64_t which = uniform(rng, 0, 3);
  GuardedTensor& target = *std::array{&r.q, &r.k, &r.v, &r.dout}[which];
  // A dropped element hides a NaN in some formulas and not in others: no NaN under dropout.
  if (chance(rng, 10) && p.dropout == 0 && std::ranges::count(target.view().shape, 0) == 0) {
    r.poisoned = std::array{"q", "k", "v", "dout"}[which];
    for (int i = 0; i < 4; ++i) r.poison_at[i] = uniform(rng, 0, target.view().shape[i] - 1);
    const auto [b, l, h, d] = r.poison_at;
    target.set(b, l, h, d, NAN);
  }
  return r;
}

ForwardTensors RandomProblem::forward() const {
  return {q.view(), k.view(), v.view(), o.view(), lse.row_view()};
}

BackwardTensors RandomProblem::backward() const {
  return {q.view(),       k.view(),  v.view(),  o.view(), dout.view(),
          lse.row_view(), dq.view(), dk.view(), dv.view()};
}

void RandomProblem::poison_outputs() {
  for (GuardedTensor* output : {&o, &lse, &dq, &dk, &dv}) output->poison();
}

std::vector<std::string> RandomProblem::hashes() const {
  return {sha256_of(o.view()), sha256_of(lse.row_view()), sha256_of(dq.view()),
          sha256_of(dk.view()), sha256_of(dv.view())};
}

bool RandomProblem::guards_intact() const {
  const std::array all{&q, &k, &v, &dout, &o, &lse, &dq, &dk, &dv};
  return std::ranges::all_of(all, [](const GuardedTensor* t) { return t->guards_intact(); });
}

std::string RandomProblem::text() const {
  std::string line = fmt::format(
      "{} {} forward {} {} {}x{} backward {} {} {}x{} threads {} workers {}", to_json(problem),
      mask.name(), forward_order, forward_placement, forward_tile.q, forward_tile.kv,
      backward_order, backward_placement, backward_tile.q, backward_tile.kv, threads, workers);
  if (poisoned) line += fmt::format(" NaN in {} at {}", *poisoned, poison_at);
  return line;
}

}  // namespace verbatim::test
