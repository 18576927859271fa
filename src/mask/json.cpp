// The JSON form of a mask:
//   {"name", "params", "q_len", "kv_len", "batch", "kv_heads", "variant_of": [...],
//    "variants": [{"slices": [[q_begin, q_end, k_begin, k_end, lo, hi], ...],
//                  "q_breaks": [...], "k_breaks": [...]}, ...]}
// An open band is null.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "mask/slice.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxBytes = size_t{64} << 20;
constexpr int kMaxDepth = 64;
constexpr const char* kOperation = "mask.from_json";

[[noreturn]] void fail(std::string argument, std::string message, std::string got,
                       std::string expected) {
  throw Error(ErrorCode::invalid_argument, kOperation, std::move(message),
              {std::move(argument), std::move(got), std::move(expected), ""});
}

/// At most 80 bytes of a value, for messages.
std::string excerpt(const Json& json) {
  std::string text = json.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

const Json& field(const Json& object, const char* name) {
  if (!object.is_object()) fail(name, "not an object", excerpt(object), "an object");
  const auto found = object.find(name);
  if (found == object.end()) fail(name, fmt::format("'{}' is missing", name), "", "");
  return *found;
}

const Json& list(const Json& object, const char* name) {
  const Json& value = field(object, name);
  if (!value.is_array()) {
    fail(name, fmt::format("'{}' is not a list", name), excerpt(value), "a list");
  }
  return value;
}

/// An integer of magnitude below 2^61: such sums do not overflow.
int64_t integer(const Json& json, const char* name) {
  const bool fits = json.is_number_integer() &&
                    (!json.is_number_unsigned() || json.get<uint64_t>() <= INT64_MAX) &&
                    json.get<int64_t>() >= Slice::kNoLow && json.get<int64_t>() <= Slice::kNoHigh;
  if (!fits) {
    fail(name, fmt::format("'{}' is not a 61-bit integer", name), excerpt(json), "an integer");
  }
  return json.get<int64_t>();
}

std::vector<int64_t> integers(const Json& object, const char* name) {
  std::vector<int64_t> values;
  for (const Json& value : list(object, name)) values.push_back(integer(value, name));
  return values;
}

Slice slice(const Json& json) {
  if (!json.is_array() || json.size() != 6) {
    fail("slices", "a slice is not a list of 6", excerpt(json),
         "[q_begin, q_end, k_begin, k_end, lo or null, hi or null]");
  }
  const auto at = [&](size_t i) { return integer(json[i], "slices"); };
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

Json parse(const std::string& text) {
  if (text.size() > kMaxBytes) {
    fail("text", "the text is too long", fmt::format("{} bytes", text.size()),
         fmt::format("at most {} bytes", kMaxBytes));
  }
  const auto limit_depth = [](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) {
      fail("text", "the text is nested too deeply", "", fmt::format("{} levels", kMaxDepth));
    }
    return true;
  };
  try {
    return Json::parse(text, limit_depth);
  } catch (const Json::exception& e) {
    fail("text", "not JSON", e.what(), "a mask as to_json writes it");
  }
}

}  // namespace

std::string to_json(const Mask& mask) {
  Json variants = Json::array();
  for (const HeadMask& head : mask.variants()) {
    Json slices = Json::array();
    for (const Slice& s : head.slices) slices.push_back(to_json(s));
    variants.push_back(
        {{"slices", std::move(slices)}, {"q_breaks", head.q_breaks}, {"k_breaks", head.k_breaks}});
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
  const Json json = parse(text);
  const Json& name = field(json, "name");
  if (!name.is_string()) fail("name", "'name' is not a string", excerpt(name), "a string");
  const Json& params = field(json, "params");
  const int64_t q_len = integer(field(json, "q_len"), "q_len");
  const int64_t kv_len = integer(field(json, "kv_len"), "kv_len");

  std::vector<HeadMask> variants;
  for (const Json& variant : list(json, "variants")) {
    HeadMask head{q_len, kv_len, {}, {}, {}};
    for (const Json& s : list(variant, "slices")) head.slices.push_back(slice(s));
    head.q_breaks = integers(variant, "q_breaks");
    head.k_breaks = integers(variant, "k_breaks");
    variants.push_back(std::move(head));
  }
  std::vector<int32_t> variant_of;
  for (const int64_t id : integers(json, "variant_of")) {
    if (id < 0 || id >= std::ssize(variants)) {
      fail("variant_of", "no such variant", fmt::to_string(id),
           fmt::format("below {}", variants.size()));
    }
    variant_of.push_back(static_cast<int32_t>(id));
  }
  return Mask(name.get<std::string>(), params.dump(), std::move(variants), std::move(variant_of),
              integer(field(json, "batch"), "batch"), integer(field(json, "kv_heads"), "kv_heads"));
}

}  // namespace verbatim
