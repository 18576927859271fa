#include "verbatim/problem.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "core/json.h"
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

std::string_view to_string(Pass pass) { return pass == Pass::forward ? "forward" : "backward"; }

double Problem::softmax_scale() const {
  return scale.value_or(1.0 / std::sqrt(static_cast<double>(head_dim)));
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
  const int64_t group = q_heads / kv_heads;
  const int64_t most_tiles = std::numeric_limits<int32_t>::max() / group;  // chains have 32 bits
  require((q_len + 63) / 64 <= most_tiles, "q_len",
          fmt::format("{} for {} query heads of a KV head", q_len, group),
          fmt::format("0 to {}", 64 * most_tiles), fmt::to_string(64 * most_tiles));
  const auto dim = [](const char* field, int64_t value) {
    require(value >= 1 && value <= 256, field, fmt::to_string(value), "1 to 256",
            value > 256 ? "256" : "1");
  };
  dim("head_dim", head_dim);
  dim("head_dim_v", head_dim_v);
  using F32 = std::numeric_limits<float>;  // in which kernels have them
  require(std::abs(scale.value_or(0)) <= F32::max(), "scale", fmt::to_string(scale.value_or(0)),
          "a finite number of f32");
  require(softcap == 0 || (softcap >= F32::min() && softcap <= F32::max()), "softcap",
          fmt::to_string(softcap), "0 (none) or a positive number of f32");
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
  constexpr const char* kOperation = "problem.from_json";
  static const std::vector<std::string> kKnown{"batch",  "q_heads",  "kv_heads",   "q_len",
                                               "kv_len", "head_dim", "head_dim_v", "dtype",
                                               "scale",  "softcap",  "dropout",    "seed"};
  const nlohmann::json json = parse_json(text, kOperation);
  require_known_members(json, kKnown, kOperation);
  const auto member = [&](const char* key) -> const nlohmann::json& {
    return json_member(json, key, kOperation);
  };
  const auto integer = [&](const char* key) { return json_int(member(key), key, kOperation); };
  const auto number = [&](const char* key) { return json_number(member(key), key, kOperation); };
  Problem p;
  p.batch = integer("batch");
  p.q_heads = integer("q_heads");
  p.kv_heads = integer("kv_heads");
  p.q_len = integer("q_len");
  p.kv_len = integer("kv_len");
  p.head_dim = integer("head_dim");
  p.head_dim_v = integer("head_dim_v");
  p.dtype = dtype_from_string(json_text(member("dtype"), "dtype", kOperation));
  if (json.contains("scale") && !json["scale"].is_null()) p.scale = number("scale");
  p.softcap = number("softcap");
  p.dropout = number("dropout");
  p.seed = json_uint(member("seed"), "seed", kOperation);
  p.validate();
  return p;
}

}  // namespace verbatim
