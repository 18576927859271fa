// Random problems, orders and layouts, each on a random world.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "backend/backend.h"
#include "backend/reference/compare.h"
#include "core/random.h"
#include "dist/dist_case.h"
#include "fuzz/random_problem.h"
#include "mask/random_mask.h"

namespace verbatim::test {
namespace {

Plan plan_of(const RandomProblem& r, Pass pass) {
  PlanOptions options;
  options.pass = pass;
  options.order = pass == Pass::forward ? r.forward_order : r.backward_order;
  options.level = Level::run_to_run;
  options.tile = pass == Pass::forward ? r.forward_tile : r.backward_tile;
  return make_plan(r.problem, r.mask, options);
}

/// A strategy, a sharding, and a world that fits the query heads.
DistOptions random_options(Rng& rng, const Problem& problem) {
  DistOptions options;
  options.strategy = strategy_names()[uniform(rng, 0, 5)];
  options.shard = shard_names()[uniform(rng, 0, 3)];
  options.world = static_cast<int32_t>(uniform(rng, 1, 16));
  if (options.strategy == "ulysses")
    while (problem.q_heads % options.world != 0) --options.world;
  options.joined_heads = static_cast<int32_t>(uniform(rng, 0, 2));
  return options;
}

/// Visits that other ranks make than those which hold the queries: anywhere, at no edges of tiles,
/// heads of the same rows on several ranks, also twice on one.
std::vector<MovedHeads> random_moves(Rng& rng, const Problem& problem, int32_t world) {
  std::vector<MovedHeads> moved;
  for (int64_t b = 0; b < problem.batch; ++b)
    for (int64_t begin = 0, end = 0; begin < problem.q_len; begin = end) {
      end = std::min(problem.q_len, begin + uniform(rng, 1, problem.q_len));
      if (uniform(rng, 0, 1) == 0) continue;
      for (int64_t head = 0, last = 0; head < problem.kv_heads; head = last) {
        last = uniform(rng, head + 1, problem.kv_heads);
        if (uniform(rng, 0, 2) == 0) continue;
        moved.push_back(
            {{b, {begin, end}}, {head, last}, static_cast<int32_t>(uniform(rng, 0, world - 1))});
      }
    }
  return moved;
}

std::string value_of(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value ? value : otherwise;
}

constexpr double kLimit = 2;  // of the error ratio: FlashAttention's factor

/// In both ways: the bits of one device, and numbers near those in double precision.
TEST(Dist, RandomProblemsHaveTheBitsOfOneDevice) {
  const uint64_t seed = std::stoull(value_of("VERBATIM_DIST_SEED", "1"));
  const uint64_t first = std::stoull(value_of("VERBATIM_DIST_CASE", "0"));
  const uint64_t cases = std::stoull(value_of("VERBATIM_DIST_CASES", "120"));
  const auto backend = make_backend("cpu");
  for (uint64_t number = first; number < first + cases; ++number) {
    RandomProblem r = RandomProblem::make(seed, number);
    Rng rng(random_bits(seed + 1, number));
    const DistOptions options = random_options(rng, r.problem);
    SCOPED_TRACE(
        fmt::format("VERBATIM_DIST_SEED={} VERBATIM_DIST_CASE={} VERBATIM_DIST_CASES=1: {} {}",
                    seed, number, to_text(options), r.text()));
    const Plan forward = plan_of(r, Pass::forward), backward = plan_of(r, Pass::backward);
    r.poison_outputs();
    backend->forward(std::make_shared<const Plan>(forward), r.forward(), {});
    backend->backward(std::make_shared<const Plan>(backward), r.backward(), {});
    const std::vector<std::string> expected = r.hashes();
    r.poison_outputs();
    Sharding sharding = make_sharding(forward, backward, r.mask, options);
    if (uniform(rng, 0, 1) == 1) sharding.moved = random_moves(rng, r.problem, options.world);
    const DistPlan dealt_forward = make_dist_plan(forward, sharding, options);
    const DistPlan dealt_backward = make_dist_plan(backward, sharding, options);
    ASSERT_NO_THROW(verify(dealt_forward));
    ASSERT_NO_THROW(verify(dealt_backward));
    const uint64_t delays = random_bits(seed + 2, number);
    replay(dealt_forward, r.forward(), "cpu", {}, delays);
    replay(dealt_backward, r.backward(), "cpu", {}, delays);
    ASSERT_EQ(r.hashes(), expected);
    const Check check =
        check_backward(r.problem, r.mask, r.backward(), Selection::all(r.problem), 1);
    ASSERT_TRUE(check.within(kLimit)) << "error ratio " << check.worst_ratio();
    ASSERT_TRUE(r.guards_intact());
  }
}

}  // namespace
}  // namespace verbatim::test
