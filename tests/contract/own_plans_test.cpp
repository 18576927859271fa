// Plans that callers bring, in place of those by rule.
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "backend/reference/compare.h"
#include "core/random.h"
#include "core/sha256.h"
#include "support/guarded_tensor.h"
#include "support/random_order.h"
#include "verbatim/verbatim.h"

namespace verbatim::test {
namespace {

using Shared = std::shared_ptr<const Plan>;

struct Tensors {
  GuardedTensor q, k, v, dout, o, lse, dq, dk, dv;

  explicit Tensors(const Problem& p)
      : q(p.dtype, {p.batch, p.q_len, p.q_heads, p.head_dim}),
        k(p.dtype, {p.batch, p.kv_len, p.kv_heads, p.head_dim}),
        v(p.dtype, {p.batch, p.kv_len, p.kv_heads, p.head_dim_v}),
        dout(p.dtype, {p.batch, p.q_len, p.q_heads, p.head_dim_v}),
        o(p.dtype, dout.view().shape),
        lse(GuardedTensor::rows({p.batch, p.q_heads, p.q_len})),
        dq(p.dtype, q.view().shape),
        dk(p.dtype, k.view().shape),
        dv(p.dtype, v.view().shape) {
    uint64_t stream = 1;
    for (GuardedTensor* t : {&q, &k, &v, &dout}) fill_normal(t->view(), stream++);
  }
  BackwardTensors backward() const {
    return {q.view(),       k.view(),  v.view(),  o.view(), dout.view(),
            lse.row_view(), dq.view(), dk.view(), dv.view()};
  }
  /// Hashes of o, lse, dq, dk and dv.
  std::vector<std::string> run(const Attention& attention, int threads) {
    for (GuardedTensor* t : {&o, &lse, &dq, &dk, &dv}) t->poison();
    RunOptions run;
    run.threads = threads;
    attention.forward({q.view(), k.view(), v.view(), o.view(), lse.row_view()}, run);
    attention.backward(backward(), run);
    return {sha256_of(o.view()), sha256_of(lse.row_view()), sha256_of(dq.view()),
            sha256_of(dk.view()), sha256_of(dv.view())};
  }
};

Problem problem_of(const Mask& mask, int64_t batch = 1) {
  return {
      .batch = batch, .q_heads = 4, .kv_heads = 2, .q_len = mask.q_len(), .kv_len = mask.kv_len()};
}

Shared by_rule(const Problem& p, const Mask& mask, Pass pass, const std::string& order) {
  PlanOptions options;
  options.pass = pass;
  options.order = order;
  options.tile = {64, 64};
  return std::make_shared<const Plan>(make_plan(p, mask, options));
}

std::vector<Mask> masks_to_try() {
  const std::vector<int64_t> documents{150, 1, 90, 259};
  return {masks::causal(500, 500), masks::full(200, 333), masks::causal_document(documents),
          masks::causal_sliding_window(500, 500, 130),
          masks::uniform_block_sparse(500, 500, 64, 64, 0.4, 3, 2)};
}

TEST(OwnPlans, RunInTheirOrder) {
  int others = 0;
  for (uint64_t seed = 1; seed <= 3; ++seed)
    for (const Mask& mask : masks_to_try()) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + mask.name());
      const Problem p = problem_of(mask, 2);
      const auto own = [&](Pass pass, const std::string& order) {
        return std::make_shared<const Plan>(
            in_random_order(*by_rule(p, mask, pass, order), seed, 3, 4));
      };
      AttentionOptions options;
      options.plans = {own(Pass::forward, "ascending"),
                       own(Pass::backward, seed % 2 ? "ascending" : "ascending/split")};
      AttentionOptions ascending;  // in the same tiles
      ascending.plan.order = ascending.forward_order = "ascending";
      ascending.plan.tile = {64, 64};
      const Attention attention(p, mask, options), usual(p, mask, ascending);
      EXPECT_EQ(attention.plan(Pass::backward).fingerprint(), options.plans[1]->fingerprint());
      EXPECT_EQ(attention.plan(Pass::forward).level, Level::gpu_to_gpu);
      Tensors tensors(p);
      const auto rule = tensors.run(usual, 2), hashes = tensors.run(attention, 1);
      const Check check = check_backward(p, mask, tensors.backward(), Selection::all(p));
      EXPECT_TRUE(check.within(2));
      for (const int threads : {2, 5}) EXPECT_EQ(tensors.run(attention, threads), hashes);
      others += hashes[0] != rule[0] && hashes[2] != rule[2] && hashes[3] != rule[3];
    }
  EXPECT_GT(others, 10);  // of 15; a short row has few orders
}

TEST(OwnPlans, ThoseOfARuleHaveItsBits) {
  const Mask mask = masks::causal(500, 500);
  const Problem p = problem_of(mask);
  const Attention usual(p, mask);
  AttentionOptions options;
  for (const Pass pass : {Pass::forward, Pass::backward})
    options.plans.push_back(
        std::make_shared<const Plan>(plan_from_json(to_json(usual.plan(pass)))));
  Tensors tensors(p);
  EXPECT_EQ(tensors.run(Attention(p, mask, options), 2), tensors.run(usual, 2));
  // One pass alone, and a problem with another seed.
  options.plans.erase(options.plans.begin());
  Problem seeded = p;
  seeded.seed = 7;
  const Attention one(seeded, mask, options);
  EXPECT_EQ(one.plan(Pass::forward).level, Level::invariant);
  EXPECT_EQ(one.plan(Pass::backward).level, Level::gpu_to_gpu);
  EXPECT_EQ(one.plan(Pass::backward).problem.seed, 7u);
  EXPECT_EQ(tensors.run(one, 2), tensors.run(usual, 2));
}

/// The message of the Error that making the attention throws.
std::string refusal(const Problem& p, const Mask& mask, const AttentionOptions& options) {
  try {
    const Attention attention(p, mask, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(OwnPlans, OthersAreRefused) {
  const Mask mask = masks::causal(500, 500);
  const Problem p = problem_of(mask);
  const Shared backward = by_rule(p, mask, Pass::backward, "ascending");
  const auto expect = [&](const AttentionOptions& options, const std::string& text,
                          const Mask& under = masks::causal(500, 500)) {
    const std::string message = refusal(p, under, options);
    EXPECT_NE(message.find(text), std::string::npos) << message;
  };
  const auto with = [](std::vector<Shared> plans) {
    AttentionOptions options;
    options.plans = std::move(plans);
    return options;
  };
  const auto changed = [&](const auto& change) {
    auto plan = std::make_shared<Plan>(*backward);
    change(*plan);
    return with({plan});
  };
  EXPECT_EQ(refusal(p, mask, with({backward})), "");
  expect(with({nullptr}), "there is no plan");
  expect(with({backward, backward}), "a pass has one plan");
  AttentionOptions named = with({backward});
  named.plan.order = "descending";
  expect(named, "the plan has an order of its own");
  named.plan.order = "auto";
  named.forward_order = "descending";
  EXPECT_EQ(refusal(p, mask, named), "");
  expect(with({backward}), "the plan is of another mask",
         masks::causal_sliding_window(500, 500, 99));
  // The same tiles at other edges.
  const std::vector<int64_t> documents{100, 400};
  expect(with({backward}), "the plan is of another mask", masks::causal_document(documents));
  expect(changed([](Plan& plan) { plan.problem.head_dim = 32; }),
         "another head_dim; got 32, expected 64");
  expect(changed([](Plan& plan) { plan.problem.scale = 1; }), "scale");
  expect(changed([](Plan& plan) { plan.problem.dropout = 0.5; }), "dropout");
  expect(changed([](Plan& plan) { plan.problem.dtype = Dtype::bf16; }), "dtype");
  expect(changed([](Plan& plan) { plan.arithmetic = "sm90.2"; }), "sm90.2");
  expect(changed([](Plan& plan) { plan.order_of_head = {0}; }),
         "heads of order_of_head is that of another problem; got 1, expected 2");
  expect(changed([](Plan& plan) { plan.order_of_head = {0, 0, 0}; }), "got 3, expected 2");
  expect(changed([](Plan& plan) { plan.orders = {nullptr}; }), "there is no order");
  expect(changed([](Plan& plan) {
           auto order = std::make_shared<HeadOrder>(*plan.orders[0]);
           order->group = 4;
           plan.orders[0] = order;
         }),
         "orders[0].group is that of another problem; got 4, expected 2");
  expect(changed([](Plan& plan) {
           HeadOrder order = *plan.orders[0];
           order.runs.edit([](std::vector<verbatim::Run>& runs) { ++runs[0].addend; });
           plan.orders[0] = std::make_shared<const HeadOrder>(order);
         }),
         "addend");
}

TEST(OwnPlans, AreReadWithoutWhatIsFoundAnew) {
  const Mask mask = masks::causal(500, 500);
  const Problem p = problem_of(mask);
  const Shared plan = by_rule(p, mask, Pass::backward, "shift");
  const std::string whole = to_json(*plan);
  nlohmann::json json = nlohmann::json::parse(whole);
  json.erase("fingerprint");
  json.erase("residency");
  EXPECT_EQ(to_json(plan_from_json(json.dump())), whole);
  const auto expect_unknown = [&](const char* pointer) {
    nlohmann::json other = json;
    other[nlohmann::json::json_pointer(pointer)]["comment"] = "mine";
    try {
      plan_from_json(other.dump());
      ADD_FAILURE() << pointer;
    } catch (const Error& error) {
      EXPECT_EQ(error.details().argument, "comment") << pointer;
    }
  };
  for (const char* pointer : {"", "/orders/0", "/placement", "/problem"}) expect_unknown(pointer);
}

}  // namespace
}  // namespace verbatim::test
