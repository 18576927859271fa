// Every entry of a padded or packed batch has the bits that it has alone, whatever the padding and
// its neighbours hold.
#include "backend/composition.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <iterator>
#include <tuple>

#include "backend/backend.h"
#include "backend/cpu/passes.h"
#include "core/random.h"
#include "schedule/orders/orders.h"

namespace verbatim::test {
namespace {

CompositionCaps caps() {
  return {.q_len = 2000,
          .kv_len = 8000,
          .work = 8e8,
          .elements = 6e7,
          .head_dims = {64, 96, 128, 192},
          .dtypes = {Dtype::f32, Dtype::bf16, Dtype::f16}};
}

uint64_t number(const char* variable, uint64_t otherwise) {
  const char* value = std::getenv(variable);
  return value == nullptr ? otherwise : static_cast<uint64_t>(std::atoll(value));
}

/// A named order of the backward that keeps Level::invariant, with or without a suffix.
std::string random_order(uint64_t seed) {
  std::vector<std::string> names;
  for (const OrderInfo& info : orders()) {
    if (info.pass != Pass::backward || info.level != Level::invariant) continue;
    for (const char* suffix : {"", "/split", "/split:2", "/split:3"})
      names.push_back(std::string(info.name) + suffix);
    if (order::takes_columns(info))
      for (const char* suffix : {"/even:2", "/even:4", "/rows:200", "/split:2/rows:64"})
        names.push_back(std::string(info.name) + suffix);
  }
  return names[random_bits(seed, 1) % names.size()];
}

Plan plan_of(const Problem& problem, const Mask& mask, Pass pass, const std::string& order) {
  PlanOptions options;
  options.pass = pass;
  options.order = order;
  return make_plan(problem, mask, options);
}

struct Orders {
  std::string forward, backward;
};

void run_forward(const Problem& problem, const Mask& mask, const HostTensors& t, const Orders& o) {
  cpu::run_forward(plan_of(problem, mask, Pass::forward, o.forward), t.forward(), {},
                   cpu::kernels());
}

void run_backward(const Problem& problem, const Mask& mask, const HostTensors& t, const Orders& o) {
  cpu::run_backward(plan_of(problem, mask, Pass::backward, o.backward), t.backward(), {},
                    cpu::kernels());
}

TEST(Bits, Composition) {
  const uint64_t first = number("VERBATIM_COMPOSITION_SEED", 1);
  const uint64_t cases = number("VERBATIM_COMPOSITION_CASES", 60);
  for (uint64_t seed = first; seed < first + cases; ++seed) {
    const Composition c = Composition::draw(seed, caps());
    const std::string named = random_order(seed);
    for (const Orders& orders : {Orders{"auto", "auto"}, Orders{"descending/split", named}}) {
      SCOPED_TRACE(orders.backward + ", " + c.text());
      const HostTensors all = tensors_of(c);
      run_forward(c.problem, c.mask, all, orders);
      ASSERT_EQ(leak(c, all, Pass::forward), "");
      spoil_padding(c, all);
      run_backward(c.problem, c.mask, all, orders);
      ASSERT_EQ(leak(c, all, Pass::backward), "");
      for (size_t i = 0; i < c.entries.size(); ++i) {
        const HostTensors alone = tensors_of(c, i);
        run_forward(c.entries[i].problem, c.entries[i].mask, alone, orders);
        run_backward(c.entries[i].problem, c.entries[i].mask, alone, orders);
        ASSERT_EQ(difference(c, i, alone, all), "") << "entry " << i;
      }
    }
  }
}

TEST(Bits, WhatAutoChoosesForACompositionIsCutForOneWorker) {
  const uint64_t first = number("VERBATIM_COMPOSITION_SEED", 1);
  for (uint64_t seed = first; seed < first + 5000; ++seed) {
    const Composition c = Composition::draw(seed, caps());
    for (const Level level : {Level::invariant, Level::gpu_to_gpu}) {
      SCOPED_TRACE(std::string(to_string(level)) + ", " + c.text());
      PlanOptions options;
      options.level = level;
      const std::string whole = make_plan(c.problem, c.mask, options).fingerprint();
      options.workers = 1;
      ASSERT_NO_THROW(ASSERT_EQ(make_plan(c.problem, c.mask, options).fingerprint(), whole));
    }
  }
}

// What gpu_to_gpu promises, whose `auto` may count all that is composed: not the workers, nor who
// does what.
TEST(Bits, CompositionsThatAreCountedAreEqualForAnyWorkersAndPlacement) {
  const uint64_t first = number("VERBATIM_COMPOSITION_SEED", 1);
  const uint64_t cases = number("VERBATIM_COMPOSITION_CASES", 30);
  for (uint64_t seed = first; seed < first + cases; ++seed) {
    const Composition c = Composition::draw(seed, caps());
    SCOPED_TRACE(c.text());
    const auto gradients = [&](const PlanOptions& options) {
      HostTensors all = tensors_of(c);
      run_forward(c.problem, c.mask, all, {"auto", "auto"});
      spoil_padding(c, all);
      const Plan plan = make_plan(c.problem, c.mask, options);
      cpu::run_backward(plan, all.backward(), {}, cpu::kernels());
      return std::tuple(plan.fingerprint(), all.dq.bytes(), all.dk.bytes(), all.dv.bytes());
    };
    PlanOptions options;
    options.level = Level::gpu_to_gpu;
    const auto expected = gradients(options);
    const char* placements[] = {"auto", "queue", "head_swizzled:2", "staggered", "longest_first"};
    options.machine = make_machine("h200");
    options.placement = placements[random_bits(seed, 2) % std::size(placements)];
    options.workers = static_cast<int32_t>(1 + random_bits(seed, 3) % 9);
    ASSERT_TRUE(gradients(options) == expected) << options.placement << " " << options.workers;
  }
}

}  // namespace
}  // namespace verbatim::test
