// Random problems, orders and layouts, each on a random world.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "backend/backend.h"
#include "backend/reference/compare.h"
#include "core/random.h"
#include "dist/random_options.h"
#include "fuzz/random_problem.h"

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

constexpr double kLimit = 2;  // of the error ratio: FlashAttention's factor

/// In both ways: the bits of one device, and numbers near those in double precision.
void check_case(Backend& backend, uint64_t seed, uint64_t number, const std::string& text) {
  RandomProblem r = RandomProblem::make(seed, number);
  Rng rng(random_bits(seed + 1, number));
  const DistOptions options = random_options(rng, r.problem, 16);
  SCOPED_TRACE(fmt::format("{}: {} {}", text, to_text(options), r.text()));
  const Plan forward = plan_of(r, Pass::forward), backward = plan_of(r, Pass::backward);
  r.poison_outputs();
  backend.forward(std::make_shared<const Plan>(forward), r.forward(), {});
  backend.backward(std::make_shared<const Plan>(backward), r.backward(), {});
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
  const Check check = check_backward(r.problem, r.mask, r.backward(), Selection::all(r.problem), 1);
  ASSERT_TRUE(check.within(kLimit)) << "error ratio " << check.worst_ratio();
  ASSERT_TRUE(r.guards_intact());
}

TEST(Dist, RandomProblemsHaveTheBitsOfOneDevice) {
  const DrawnCases cases(120);
  const auto backend = make_backend("cpu");
  for (uint64_t number = cases.first; number < cases.end; ++number) {
    check_case(*backend, cases.seed, number, cases.text(number));
    if (HasFatalFailure()) return;
  }
}

/// The LSE of a row that one key decides is off as its score is, a sum of 128 terms: 2.02 and 2.07
/// times what one rounding makes.
TEST(Dist, RandomProblemsOfLargeScoresAreNearTheReference) {
  const auto backend = make_backend("cpu");
  for (const uint64_t number : {1009, 1244}) check_case(*backend, 26, number, "seed 26");
}

}  // namespace
}  // namespace verbatim::test
