#include "core/json.h"

#include <gtest/gtest.h>

#include "verbatim/error.h"
#include "verbatim/problem.h"

namespace verbatim {
namespace {

std::string nested(int depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(Json, LimitsDepthSizeAndDoubleKeys) {
  EXPECT_NO_THROW(parse_json(nested(64), "test"));
  EXPECT_THROW(parse_json(nested(65), "test"), Error);
  EXPECT_THROW(parse_json(std::string(1000000, '['), "test"), Error);
  EXPECT_THROW(parse_json("[1, 2]", "test", {.depth = 64, .bytes = 5}), Error);
  EXPECT_NO_THROW(parse_json(R"({"a": {"b": 1}, "b": 2})", "test"));
  EXPECT_THROW(parse_json(R"({"a": {"b": 1, "b": 2}})", "test"), Error);
  for (const char* text : {"", "{", "[1,]", "nul", "1 2", "\"\xff\"", "1e999"})
    EXPECT_THROW(parse_json(text, "test"), Error) << text;
}

TEST(Json, CastsNothingSilently) {
  const auto value = [](const char* text) { return parse_json(text, "test"); };
  EXPECT_EQ(json_int(value("-9223372036854775808"), "x", "test"), INT64_MIN);
  EXPECT_EQ(json_uint(value("18446744073709551615"), "x", "test"), UINT64_MAX);
  for (const char* text : {"1.5", "\"1\"", "true", "null", "[1]", "9223372036854775808"})
    EXPECT_THROW(json_int(value(text), "x", "test"), Error) << text;
  EXPECT_THROW(json_uint(value("-1"), "x", "test"), Error);
  EXPECT_THROW(json_number(value("\"1\""), "x", "test"), Error);
  EXPECT_THROW(json_text(value("1"), "x", "test"), Error);
}

TEST(Json, ErrorsNameTheArgument) {
  try {
    json_int(json_member(parse_json(R"({"window": "wide"})", "test"), "window", "test"), "window",
             "test");
    FAIL() << "text was taken for an integer";
  } catch (const Error& e) {
    EXPECT_EQ(e.details().argument, "window");
    EXPECT_EQ(e.details().got, "\"wide\"");
    EXPECT_EQ(e.details().expected, "an integer");
  }
}

TEST(Json, ProblemsRefuseFractionsAndWrappedIntegers) {
  const auto with_batch = [](const std::string& batch) {
    return R"({"batch":)" + batch + R"(,"q_heads":1,"kv_heads":1,"q_len":1,"kv_len":1,)" +
           R"("head_dim":8,"head_dim_v":8,"dtype":"f32","scale":1,"softcap":0,"dropout":0,)" +
           R"("seed":0})";
  };
  EXPECT_EQ(problem_from_json(with_batch("2")).batch, 2);
  EXPECT_THROW(problem_from_json(with_batch("1.5")), Error);
  EXPECT_THROW(problem_from_json(with_batch("18446744073709551617")), Error);
}

}  // namespace
}  // namespace verbatim
