#include "core/json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <vector>

#include "core/names.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

using nlohmann::json;

[[noreturn]] void fail(std::string_view operation, std::string message,
                       Error::Details details = {}) {
  throw Error(ErrorCode::invalid_argument, std::string(operation), std::move(message),
              std::move(details));
}

// What the caller wrote, short enough for a message.
std::string excerpt(const json& value) {
  if (value.is_structured()) return fmt::format("an {}", value.type_name());
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 40) text = text.substr(0, 40) + "...";
  return text;
}

[[noreturn]] void wrong_type(const json& value, std::string_view argument,
                             std::string_view operation, std::string expected) {
  fail(operation, fmt::format("'{}' has the wrong type or range", argument),
       {std::string(argument), excerpt(value), std::move(expected), ""});
}

}  // namespace

json parse_json(std::string_view text, std::string_view operation, const JsonLimits& limits) {
  if (text.size() > limits.bytes)
    fail(operation, "JSON is too long",
         {"json", fmt::format("{} bytes", text.size()), fmt::format("at most {}", limits.bytes),
          ""});
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    using Event = json::parse_event_t;
    if ((event == Event::object_start || event == Event::array_start) && depth >= limits.depth)
      fail(operation, "JSON nests too deep",
           {"json", fmt::format("more than {} levels", limits.depth),
            fmt::format("at most {}", limits.depth), ""});
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second)
      fail(operation, "an object names a key twice",
           {value.get<std::string>(), "the same key again", "each key once", ""});
    return true;
  };
  try {
    return json::parse(text, watch);
  } catch (const json::exception& e) {
    fail(operation, fmt::format("not JSON: {}", e.what()));
  }
}

const json& json_member(const json& value, const char* key, std::string_view operation) {
  if (!value.is_object())
    fail(operation, fmt::format("no object to hold '{}'", key),
         {key, excerpt(value), "a JSON object", ""});
  const auto found = value.find(key);
  if (found == value.end())
    fail(operation, fmt::format("'{}' is missing", key), {key, "nothing", "a member", ""});
  return *found;
}

void require_known_members(const json& value, const std::vector<std::string>& known,
                           std::string_view operation) {
  if (!value.is_object())
    fail(operation, "no object to hold the members",
         {"json", excerpt(value), fmt::format("an object of {}", fmt::join(known, ", ")), ""});
  std::vector<std::string> free;  // a member that is there cannot be meant
  std::ranges::copy_if(known, std::back_inserter(free),
                       [&](const std::string& name) { return !value.contains(name); });
  for (const auto& [key, unused] : value.items())
    if (std::ranges::find(known, key) == known.end())
      fail(operation, fmt::format("there is no member '{}'", key),
           {key, key, fmt::format("{}", fmt::join(known, ", ")), nearest_name(key, free)});
}

const json& json_object(const json& value, std::string_view argument, std::string_view operation) {
  if (!value.is_object()) wrong_type(value, argument, operation, "an object");
  return value;
}

const json& json_list(const json& value, std::string_view argument, std::string_view operation) {
  if (!value.is_array()) wrong_type(value, argument, operation, "a list");
  return value;
}

int32_t json_int32(const json& value, std::string_view argument, std::string_view operation) {
  const int64_t wide = json_int(value, argument, operation);
  if (wide < INT32_MIN || wide > INT32_MAX)
    wrong_type(value, argument, operation, "an integer of 32 bits");
  return static_cast<int32_t>(wide);
}

int64_t json_int(const json& value, std::string_view argument, std::string_view operation) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{INT64_MAX})
    wrong_type(value, argument, operation, "an integer below 2^63");
  if (!value.is_number_integer()) wrong_type(value, argument, operation, "an integer");
  return value.get<int64_t>();
}

uint64_t json_uint(const json& value, std::string_view argument, std::string_view operation) {
  if (!value.is_number_integer() || (!value.is_number_unsigned() && value.get<int64_t>() < 0))
    wrong_type(value, argument, operation, "an integer of at least 0");
  return value.get<uint64_t>();
}

double json_number(const json& value, std::string_view argument, std::string_view operation) {
  if (!value.is_number()) wrong_type(value, argument, operation, "a number");
  return value.get<double>();
}

std::string json_text(const json& value, std::string_view argument, std::string_view operation) {
  if (!value.is_string()) wrong_type(value, argument, operation, "a string");
  return value.get<std::string>();
}

bool json_bool(const json& value, std::string_view argument, std::string_view operation) {
  if (!value.is_boolean()) wrong_type(value, argument, operation, "true or false");
  return value.get<bool>();
}

}  // namespace verbatim
