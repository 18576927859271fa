#include "verbatim/problem.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "verbatim/error.h"

namespace verbatim {
namespace {

void require(bool ok, const char* field, std::string got, std::string expected,
             std::string nearest = "") {
  if (ok) return;
  throw Error(ErrorCode::invalid_argument, "problem", fmt::format("{} is out of range", field),
              {field, std::move(got), std::move(expected), std::move(nearest)});
}

}  // namespace

double Problem::softmax_scale() const {
  return scale != 0 ? scale : 1.0 / std::sqrt(static_cast<double>(head_dim));
}

void Problem::validate() const {
  constexpr int64_t kMaxCount = 1 << 24;            // batch and heads
  constexpr int64_t kMaxLength = int64_t{1} << 30;  // tile indices stay within 32 bits
  const auto count = [](const char* field, int64_t value) {
    require(value >= 1 && value <= kMaxCount, field, fmt::to_string(value), "1 to 2^24");
  };
  count("batch", batch);
  count("q_heads", q_heads);
  count("kv_heads", kv_heads);
  if (q_heads % kv_heads != 0) {
    int64_t divisor = kv_heads;
    while (q_heads % divisor != 0) --divisor;
    require(false, "kv_heads", fmt::format("{} for {} query heads", kv_heads, q_heads),
            "a divisor of q_heads", fmt::to_string(divisor));
  }
  const auto length = [](const char* field, int64_t value) {
    require(value >= 0 && value <= kMaxLength, field, fmt::to_string(value), "0 to 2^30");
  };
  length("q_len", q_len);
  length("kv_len", kv_len);
  const auto dim = [](const char* field, int64_t value) {
    require(value >= 1 && value <= 256, field, fmt::to_string(value), "1 to 256",
            value > 256 ? "256" : "1");
  };
  dim("head_dim", head_dim);
  dim("head_dim_v", head_dim_v);
  require(std::isfinite(scale), "scale", fmt::to_string(scale), "a finite number");
  require(std::isfinite(softcap) && softcap >= 0, "softcap", fmt::to_string(softcap),
          "0 (none) or a positive number");
  require(dropout >= 0 && dropout < 1, "dropout", fmt::to_string(dropout),
          "at least 0 and below 1");
}

std::string to_json(const Problem& p) {
  const nlohmann::ordered_json json = {
      {"batch", p.batch},           {"q_heads", p.q_heads},        {"kv_heads", p.kv_heads},
      {"q_len", p.q_len},           {"kv_len", p.kv_len},          {"head_dim", p.head_dim},
      {"head_dim_v", p.head_dim_v}, {"dtype", to_string(p.dtype)}, {"scale", p.softmax_scale()},
      {"softcap", p.softcap},       {"dropout", p.dropout},        {"seed", p.seed}};
  return json.dump();
}

Problem problem_from_json(const std::string& text) {
  try {
    const auto json = nlohmann::json::parse(text);
    Problem p;
    p.batch = json.at("batch").get<int64_t>();
    p.q_heads = json.at("q_heads").get<int64_t>();
    p.kv_heads = json.at("kv_heads").get<int64_t>();
    p.q_len = json.at("q_len").get<int64_t>();
    p.kv_len = json.at("kv_len").get<int64_t>();
    p.head_dim = json.at("head_dim").get<int64_t>();
    p.head_dim_v = json.at("head_dim_v").get<int64_t>();
    p.dtype = dtype_from_string(json.at("dtype").get<std::string>());
    p.scale = json.at("scale").get<double>();
    p.softcap = json.at("softcap").get<double>();
    p.dropout = json.at("dropout").get<double>();
    p.seed = json.at("seed").get<uint64_t>();
    p.validate();
    return p;
  } catch (const nlohmann::json::exception& e) {
    throw Error(ErrorCode::invalid_argument, "problem.from_json", e.what());
  }
}

}  // namespace verbatim
