// Seeded faults: what the tests of bits and the verifier must see. They lie in the data of a plan,
// so the kernels are those that ship.
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/cuda/gpu_case.h"
#include "backend/cuda/load.h"

namespace verbatim::test {
namespace {

enum Output : size_t { kO, kLse, kDq, kDk, kDv };  // of GpuCase::bits

/// Eight tiles of keys, and so many rows of f16 that the last bit of a sum shows in some.
constexpr int64_t kLength = 1024, kTile = 128;

Problem faulty_problem(const Mask& mask, const HeadDims& dims) {
  Problem p = problem_of(mask, dims);
  p.dtype = Dtype::f16;
  return p;
}

/// `plan` with an order that `edit` has changed.
template <class Edit>
Plan edited(const SharedPlan& plan, Edit edit) {
  Plan changed = *plan;
  for (auto& order : changed.orders) {
    auto copy = std::make_shared<HeadOrder>(*order);
    edit(*copy);
    order = copy;
  }
  return changed;
}

/// Renames the addends of every visit.
template <class Rename>
void rename_addends(HeadOrder& order, Rename rename) {
  order.runs.edit([&](auto& runs) {
    for (Run& run : runs) {
      EXPECT_EQ(run.addend_step, 0) << "ascending: one addend for each KV tile";
      run.addend = rename(run.addend);
    }
  });
}

/// Lets the last KV tile visit queries that see KV tiles 0 to 5 only: first of all, as addend 0.
void visit_a_hidden_tile(HeadOrder& order) {
  const auto& edges = order.tiles->q_edges;
  for (Chain& chain : order.chains) {
    if (chain.tile != order.tiles->kv_tiles() - 1) continue;
    std::vector<Run> all = order.runs.all();
    const std::vector<Run> runs(all.begin() + chain.run_begin, all.begin() + chain.run_end);
    Run hidden = runs.front();
    ASSERT_GT(hidden.slice_count, 0) << "the slice that hides it";
    hidden.first = static_cast<int32_t>(std::ranges::find(edges, 5 * kTile) - edges.begin());
    hidden.count = 1;
    hidden.addend = 0;
    chain.run_begin = static_cast<int32_t>(all.size());
    all.push_back(hidden);
    all.insert(all.end(), runs.begin(), runs.end());
    chain.run_end = static_cast<int32_t>(all.size());
    order.runs = Runs(all);
  }
}

bool refused(const Plan& plan) {
  try {
    verify(plan);
    return false;
  } catch (const Error&) {
    return true;
  }
}

/// Whether one of up to `limit` runs of `bad` has another dQ than `good`, or a wait that expires.
bool seen(GpuCase& c, const SharedPlan& forward, const SharedPlan& good, const SharedPlan& bad,
          int limit) {
  c.run(*gpu(), forward, good);
  const auto expected = c.bits();
  try {
    for (int i = 0; i < limit; ++i) {
      c.run(*gpu(), forward, bad);
      if (c.bits()[kDq] != expected[kDq]) return true;
    }
    return false;
  } catch (const Error&) {  // a turn that was handed back
    return true;
  }
}

TEST(Faults, ASwappedOrderHasOtherBits) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const Mask mask = masks::full(kLength, kLength);
  for (const HeadDims& dims : every_head_dims()) {
    GpuCase c(faulty_problem(mask, dims), mask, 1);
    const SharedPlan forward = c.plan(Pass::forward, "ascending");
    const SharedPlan good = c.plan(Pass::backward, "ascending");
    Plan bad = edited(good, [](HeadOrder& order) {
      rename_addends(order, [](int32_t a) { return a == 3 ? 4 : a == 4 ? 3 : a; });
    });
    bad.residency = verify(bad);  // a valid plan, of another order
    EXPECT_NE(bad.fingerprint(), good->fingerprint());
    c.run(*gpu(), forward, good);
    const auto expected = c.bits();
    c.run(*gpu(), forward, share(bad));
    const auto swapped = c.bits();
    EXPECT_NE(swapped[kDq], expected[kDq]) << "head dims " << to_string(dims);
    for (const size_t same : {kO, kLse, kDk, kDv}) EXPECT_EQ(swapped[same], expected[same]);
  }
}

TEST(Faults, AMissingWaitHasOtherBits) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  const Mask mask = masks::full(kLength, kLength);
  for (const int64_t head_dim : {64, 128}) {
    GpuCase c(faulty_problem(mask, head_dim), mask, 1);
    const SharedPlan good = c.plan(Pass::backward, "ascending");
    // All KV tiles but the first and the last wait for the first alone, and the last for one.
    const Plan bad = edited(good, [](HeadOrder& order) {
      const int32_t last = order.tiles->kv_tiles() - 1;
      rename_addends(order, [=](int32_t a) { return a == last ? 2 : std::min(a, 1); });
      for (int32_t& addends : order.row_addends) addends = 3;
    });
    EXPECT_TRUE(refused(bad));
    EXPECT_TRUE(seen(c, c.plan(Pass::forward, "ascending"), good, share(bad), 20))
        << "head dim " << head_dim;
  }
}

TEST(Faults, AMaskedTileThatSignalsHasOtherBits) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  if (!kDelayed) GTEST_SKIP() << "without delays no run may show it: gpu_delayed_test does";
  const Mask mask = masks::causal(kLength, kLength);
  for (const int64_t head_dim : {64, 128}) {
    GpuCase c(faulty_problem(mask, head_dim), mask, 1);
    const SharedPlan good = c.plan(Pass::backward, "ascending");
    const Plan bad = edited(good, visit_a_hidden_tile);
    EXPECT_TRUE(refused(bad));
    EXPECT_TRUE(seen(c, c.plan(Pass::forward, "ascending"), good, share(bad), 20))
        << "head dim " << head_dim;
  }
}

TEST(Faults, WithoutTurnsTheBitsChange) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  if (!kDelayed) GTEST_SKIP() << "without delays no run may show it: gpu_delayed_test does";
  const Mask mask = masks::causal(kLength, kLength);
  for (const int64_t head_dim : {64, 128}) {
    GpuCase c(faulty_problem(mask, head_dim), mask, 1);
    const SharedPlan none = [&] {
      PlanOptions options;
      options.order = "none";
      options.level = Level::not_guaranteed;
      options.arithmetic = gpu_arithmetic();
      options.workers = 132;
      return share(make_plan(c.problem, mask, options));
    }();
    EXPECT_TRUE(seen(c, c.plan(Pass::forward, "ascending"), none, none, 100))
        << "head dim " << head_dim;
  }
}

}  // namespace
}  // namespace verbatim::test
