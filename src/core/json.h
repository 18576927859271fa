// Reading JSON that nobody vouches for: bounded depth and size, no double keys, no silent casts.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace verbatim {

struct JsonLimits {
  int depth = 64;
  size_t bytes = size_t{64} << 20;
};

/// The value of `text`. Throws Error(invalid_argument) in the name of `operation` when it is not
/// JSON, nests deeper or is longer than `limits`, or when an object names a key twice.
nlohmann::json parse_json(std::string_view text, std::string_view operation,
                          const JsonLimits& limits = {});

/// Member `key` of an object. Throws Error when `value` is no object or lacks it.
const nlohmann::json& json_member(const nlohmann::json& value, const char* key,
                                  std::string_view operation);

/// Throws Error, which names the nearest, when `value` is no object or has a member that is not
/// `known`.
void require_known_members(const nlohmann::json& value, const std::vector<std::string>& known,
                           std::string_view operation);

/// A value as an object, a list, an integer, a number, text, true or false. `argument` names it in
/// the Error that another type, or an integer outside the result's range, raises; 1.5 is no
/// integer.
const nlohmann::json& json_object(const nlohmann::json& value, std::string_view argument,
                                  std::string_view operation);
const nlohmann::json& json_list(const nlohmann::json& value, std::string_view argument,
                                std::string_view operation);
int32_t json_int32(const nlohmann::json& value, std::string_view argument,
                   std::string_view operation);
int64_t json_int(const nlohmann::json& value, std::string_view argument,
                 std::string_view operation);
uint64_t json_uint(const nlohmann::json& value, std::string_view argument,
                   std::string_view operation);
double json_number(const nlohmann::json& value, std::string_view argument,
                   std::string_view operation);
std::string json_text(const nlohmann::json& value, std::string_view argument,
                      std::string_view operation);
bool json_bool(const nlohmann::json& value, std::string_view argument, std::string_view operation);

}  // namespace verbatim
