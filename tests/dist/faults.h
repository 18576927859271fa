// What tests of faults share: where steps of a kind are, and plans that are broken there.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "dist/dist_case.h"

namespace verbatim::test {

inline const DistCase& causal_case() {
  static const DistCase c({.q_heads = 4,
                           .kv_heads = 2,
                           .q_len = 200,
                           .kv_len = 200,
                           .head_dim = 16,
                           .head_dim_v = 16,
                           .dtype = Dtype::bf16},
                          masks::causal(200, 200), {16, 16}, "descending");
  return c;
}

inline DistPlan backward_plan() {
  return causal_case().deal({.world = 4, .strategy = "balanced", .shard = "zigzag"}).backward;
}

/// Ranks and steps of one kind for which `wanted` holds.
template <class T>
std::vector<std::pair<size_t, size_t>> find(const DistPlan& plan,
                                            const std::function<bool(const T&)>& wanted) {
  std::vector<std::pair<size_t, size_t>> found;
  for (size_t r = 0; r < plan.ranks.size(); ++r)
    for (size_t s = 0; s < plan.ranks[r].steps.size(); ++s)
      if (const T* step = std::get_if<T>(&plan.ranks[r].steps[s]); step && wanted(*step))
        found.emplace_back(r, s);
  return found;
}
template <class T>
bool any(const T&) {
  return true;
}

/// Applies `break_it` to each step in turn, each time to a fresh plan, and expects a refusal.
template <class T>
void expect_refused(const std::function<bool(const T&)>& wanted,
                    const std::function<void(std::vector<Step>&, size_t)>& break_it,
                    const DistPlan& good = backward_plan()) {
  ASSERT_EQ(refusal(good), "");
  const auto places = find<T>(good, wanted);
  ASSERT_GT(places.size(), 0u);
  for (const auto& [rank, step] : places) {
    DistPlan bad = good;
    break_it(bad.ranks[rank].steps, step);
    EXPECT_NE(refusal(bad), "") << "rank " << rank << " step " << step;
  }
}

inline void erase(std::vector<Step>& steps, size_t at) {
  steps.erase(steps.begin() + static_cast<ptrdiff_t>(at));
}
inline void repeat(std::vector<Step>& steps, size_t at) {
  steps.insert(steps.begin() + static_cast<ptrdiff_t>(at), Step(steps[at]));
}

/// Changes the part of a launch alone, though heads share it.
inline void change(Step& step, const std::function<void(OrderPart&)>& how) {
  HeadPart& own = std::get<Compute>(step).heads.front();
  auto part = std::make_shared<OrderPart>(*own.part);
  how(*part);
  own.part = std::move(part);
}

}  // namespace verbatim::test
