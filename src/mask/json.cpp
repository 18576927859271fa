// The JSON form of a mask:
//   {"name", "params", "q_len", "kv_len", "batch", "kv_heads", "variant_of": [...],
//    "variants": [{"slices": [[q_begin, q_end, k_begin, k_end, lo, hi], ...],
//                  "q_breaks": [...], "k_breaks": [...], "q_padding", "k_padding"}, ...]}
// An open band is null; no padding is left out.
#include <fmt/format.h>

#include "core/json.h"
#include "mask/slice.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

using Json = nlohmann::ordered_json;  // writes keys in the order above

constexpr const char* kOperation = "mask.from_json";

const nlohmann::json& list(const nlohmann::json& object, const char* key) {
  return json_list(json_member(object, key, kOperation), key, kOperation);
}

int64_t integer(const nlohmann::json& object, const char* key) {
  return json_int(json_member(object, key, kOperation), key, kOperation);
}

std::vector<int64_t> integers(const nlohmann::json& object, const char* key) {
  std::vector<int64_t> values;
  for (const auto& value : list(object, key)) values.push_back(json_int(value, key, kOperation));
  return values;
}

Slice slice(const nlohmann::json& json) {
  if (!json.is_array() || json.size() != 6) {
    throw Error(ErrorCode::invalid_argument, kOperation, "a slice is not a list of 6",
                {"slices", fmt::format("{} of {}", json.type_name(), json.size()),
                 "[q_begin, q_end, k_begin, k_end, lo or null, hi or null]", ""});
  }
  const auto at = [&](size_t i) { return json_int(json[i], "slices", kOperation); };
  return {at(0),
          at(1),
          at(2),
          at(3),
          json[4].is_null() ? Slice::kNoLow : at(4),
          json[5].is_null() ? Slice::kNoHigh : at(5)};
}

Json to_json(const Slice& s) {
  Json json = {s.q_begin, s.q_end, s.k_begin, s.k_end, nullptr, nullptr};
  if (s.lo != Slice::kNoLow) json[4] = s.lo;
  if (s.hi != Slice::kNoHigh) json[5] = s.hi;
  return json;
}

}  // namespace

std::string to_json(const Mask& mask) {
  Json variants = Json::array();
  for (const HeadMask& head : mask.variants()) {
    Json slices = Json::array();
    for (const Slice& s : head.slices) slices.push_back(to_json(s));
    Json variant = {
        {"slices", std::move(slices)}, {"q_breaks", head.q_breaks}, {"k_breaks", head.k_breaks}};
    if (head.q_padding > 0) variant["q_padding"] = head.q_padding;
    if (head.k_padding > 0) variant["k_padding"] = head.k_padding;
    variants.push_back(std::move(variant));
  }
  std::vector<int32_t> variant_of;
  for (int64_t b = 0; b < mask.batch(); ++b) {
    for (int64_t h = 0; h < mask.kv_heads(); ++h) variant_of.push_back(mask.variant(b, h));
  }
  const Json json = {{"name", mask.name()},      {"params", Json::parse(mask.params_json())},
                     {"q_len", mask.q_len()},    {"kv_len", mask.kv_len()},
                     {"batch", mask.batch()},    {"kv_heads", mask.kv_heads()},
                     {"variant_of", variant_of}, {"variants", std::move(variants)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Mask mask_from_json(const std::string& text) {
  const nlohmann::json json = parse_json(text, kOperation);
  require_known_members(
      json, {"name", "params", "q_len", "kv_len", "batch", "kv_heads", "variant_of", "variants"},
      kOperation);
  const int64_t q_len = integer(json, "q_len"), kv_len = integer(json, "kv_len");
  std::vector<HeadMask> variants;
  for (const auto& variant : list(json, "variants")) {
    require_known_members(variant, {"slices", "q_breaks", "k_breaks", "q_padding", "k_padding"},
                          kOperation);
    HeadMask head{q_len, kv_len, {}, integers(variant, "q_breaks"), integers(variant, "k_breaks")};
    if (variant.contains("q_padding")) head.q_padding = integer(variant, "q_padding");
    if (variant.contains("k_padding")) head.k_padding = integer(variant, "k_padding");
    for (const auto& s : list(variant, "slices")) head.slices.push_back(slice(s));
    variants.push_back(std::move(head));
  }
  std::vector<int32_t> variant_of;
  for (const int64_t id : integers(json, "variant_of")) {
    if (id < 0 || id >= std::ssize(variants)) {
      throw Error(ErrorCode::invalid_argument, kOperation, "no such variant",
                  {"variant_of", fmt::to_string(id), fmt::format("below {}", variants.size()), ""});
    }
    variant_of.push_back(static_cast<int32_t>(id));
  }
  return Mask(json_text(json_member(json, "name", kOperation), "name", kOperation),
              json_member(json, "params", kOperation).dump(), std::move(variants),
              std::move(variant_of), integer(json, "batch"), integer(json, "kv_heads"));
}

}  // namespace verbatim
