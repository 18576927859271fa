#include "verbatim/problem.h"

#include <gtest/gtest.h>

#include <cmath>

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

TEST(Problem, ChainsOfAKvHeadHave32Bits) {
  Problem p{.q_heads = 1 << 16, .kv_heads = 1, .q_len = int64_t{64} * 32767, .kv_len = 1};
  EXPECT_NO_THROW(p.validate());
  ++p.q_len;
  try {
    p.validate();
    FAIL() << "more chains than have numbers were accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.details().argument, "q_len");
    EXPECT_EQ(e.details().nearest, "2097088");
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

TEST(Problem, AScaleOfZeroIsZero) {
  Problem p{.q_len = 8, .kv_len = 8, .head_dim = 16};
  EXPECT_EQ(p.softmax_scale(), 0.25);
  EXPECT_EQ(problem_from_json(to_json(p)).softmax_scale(), 0.25);
  for (const double scale : {0.0, -0.5, 0.5}) {
    p.scale = scale;
    EXPECT_NO_THROW(p.validate());
    EXPECT_EQ(p.softmax_scale(), scale);
    EXPECT_EQ(problem_from_json(to_json(p)).scale, scale);
  }
  for (const char* scale : {R"("scale":null,)", ""}) {
    const std::string json = R"({"batch":1,"q_heads":1,"kv_heads":1,"q_len":8,"kv_len":8,)" +
                             (R"("head_dim":16,"head_dim_v":16,"dtype":"f32",)" +
                              std::string(scale) + R"("softcap":0,"dropout":0,"seed":0})");
    EXPECT_EQ(problem_from_json(json).scale, std::nullopt) << json;
  }
  for (const double scale : {1e39, -1e39, double{INFINITY}, double{NAN}}) {
    p.scale = scale;
    try {
      p.validate();
      FAIL() << scale << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.details().argument, "scale");
    }
  }
}

TEST(Problem, RejectsMalformedJson) {
  EXPECT_THROW(problem_from_json("{\"batch\": 1"), Error);
  EXPECT_THROW(problem_from_json("{\"batch\": \"one\"}"), Error);
  std::string misspelt = to_json(Problem{.q_len = 8, .kv_len = 8});
  misspelt.replace(misspelt.find("scale"), 5, "scal");
  try {
    problem_from_json(misspelt);
    ADD_FAILURE() << misspelt << " was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.details().argument, "scal");
    EXPECT_EQ(e.details().nearest, "scale");
  }
}

}  // namespace
}  // namespace verbatim
