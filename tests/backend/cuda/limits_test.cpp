// What is too large for the indices of a launch is refused by name. Needs no GPU.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "backend/cuda/registry.h"
#include "verbatim/error.h"

namespace verbatim::test {
namespace {

constexpr int64_t kIndex = INT32_MAX;

/// The argument that a problem of these sizes is refused for; "" when it is not.
std::string refused(const cuda::Limits& limits, const Problem& problem,
                    const cuda::PlanCounts& counts) {
  try {
    cuda::check_limits(limits, problem, counts);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_FALSE(error.details().got.empty());
    EXPECT_FALSE(error.details().expected.empty());
    EXPECT_FALSE(error.details().nearest.empty());
    return error.details().argument;
  }
}

Problem sizes(int64_t batch, int64_t q_heads, int64_t kv_heads, int64_t length) {
  Problem p;
  p.batch = batch;
  p.q_heads = q_heads;
  p.kv_heads = kv_heads;
  p.q_len = p.kv_len = length;
  return p;
}

TEST(Limits, OneBelowAtAndOneAbove) {
  struct Row {
    const char* argument;
    int64_t limit;
    Problem (*problem)(int64_t value);
    cuda::PlanCounts (*counts)(int64_t value);
  };
  const auto one = [](int64_t) { return cuda::PlanCounts{1, 1, 1}; };
  const auto unit = [](int64_t) { return sizes(1, 1, 1, 1); };
  const std::vector<Row> rows{
      {"batch", 65536, [](int64_t n) { return sizes(n, 1, 1, 1); }, one},
      {"q_heads", 65536, [](int64_t n) { return sizes(1, n, 1, 1); }, one},
      {"batch, kv_heads", kIndex, [](int64_t n) { return sizes(1, 1, n, 1); }, one},
      {"batch, q_heads, q_len", kIndex, unit,
       [](int64_t n) {
         return cuda::PlanCounts{n, 1, 1};
       }},
      {"batch, kv_heads, kv_len", kIndex, unit,
       [](int64_t n) {
         return cuda::PlanCounts{1, n, 1};
       }},
      {"batch, q_heads, q_len", 8 * kIndex, [](int64_t n) { return sizes(1, 1, 1, n); }, one},
      {"order", int64_t{1} << 30, unit,
       [](int64_t n) {
         return cuda::PlanCounts{1, 1, n};
       }},
  };
  const cuda::Limits limits{.batch = 65536, .q_heads = 65536};
  for (const Row& row : rows) {
    for (const int64_t value : {row.limit - 1, row.limit, row.limit + 1}) {
      EXPECT_EQ(refused(limits, row.problem(value), row.counts(value)),
                value > row.limit ? row.argument : "")
          << row.argument << " " << value;
    }
  }
}

TEST(Limits, ProductsThatNoIntegerHoldsAreRefused) {
  const int64_t most = 1 << 24;
  EXPECT_EQ(refused({}, sizes(most, most, 1, 1), {int64_t{1} << 30, 1, 1}),
            "batch, q_heads, q_len");
  EXPECT_EQ(refused({}, sizes(most, most, most, 1), {1, 1, 1}), "batch, kv_heads");
  // A grid's y dimension ends at 65,535; rows of batch and heads do not lie there.
  EXPECT_EQ(refused({}, sizes(1 << 10, 1 << 10, 1 << 10, 8), {1, 1, 1 << 20}), "");
}

TEST(Limits, OfTheHopperBackwardAreThoseOfItsFields) {
  for (const cuda::Kernel& kernel : cuda::kernels()) {
    const bool narrow = std::string(kernel.name) == "sm90.backward";
    EXPECT_EQ(refused(kernel.limits, sizes(65537, 1, 1, 1), {1, 1, 1}), narrow ? "batch" : "")
        << kernel.name;
  }
}

}  // namespace
}  // namespace verbatim::test
