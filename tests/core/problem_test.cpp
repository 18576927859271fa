#include "verbatim/problem.h"

#include <gtest/gtest.h>

#include "verbatim/error.h"

namespace verbatim {
namespace {

TEST(Problem, NamesTheFieldAndTheNearestDivisor) {
  Problem p{.batch = 1, .q_heads = 12, .kv_heads = 5, .q_len = 8, .kv_len = 8};
  try {
    p.validate();
    FAIL() << "12 query heads over 5 KV heads was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.details().argument, "kv_heads");
    EXPECT_EQ(e.details().nearest, "4");
  }
}

TEST(Problem, JsonRoundTrips) {
  Problem p{.batch = 2, .q_heads = 8, .kv_heads = 2, .q_len = 100, .kv_len = 130};
  p.dtype = Dtype::bf16;
  p.dropout = 0.125;
  p.seed = 0xffffffffffffffffull;
  const std::string json = to_json(p);
  EXPECT_EQ(to_json(problem_from_json(json)), json);
}

TEST(Problem, RejectsMalformedJson) {
  EXPECT_THROW(problem_from_json("{\"batch\": 1"), Error);
  EXPECT_THROW(problem_from_json("{\"batch\": \"one\"}"), Error);
}

}  // namespace
}  // namespace verbatim
