// Records in JSON that nobody vouches for, read with the names of their members at hand.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "core/json.h"
#include "verbatim/error.h"

namespace verbatim {

/// A value that is being read, what errors call it ("orders[0].runs[3]"), and who reads it. Each
/// reader throws Error where the value is something else.
struct JsonNode {
  const nlohmann::json& value;
  std::string name;
  const char* operation;

  JsonNode member(const char* key) const {
    return {json_member(value, key, operation), name.empty() ? key : name + "." + key, operation};
  }
  JsonNode item(size_t i) const { return {value[i], fmt::format("{}[{}]", name, i), operation}; }
  size_t size() const { return json_list(value, name, operation).size(); }
  std::string text() const { return json_text(value, name, operation); }
  bool boolean() const { return json_bool(value, name, operation); }
  int32_t int32() const { return json_int32(value, name, operation); }
  int64_t int64() const { return json_int(value, name, operation); }

  /// Each item of a list, as `read` makes it.
  template <class F>
  auto items(F&& read) const {
    std::vector<decltype(read(*this))> values;
    const size_t count = size();
    for (size_t i = 0; i < count; ++i) values.push_back(read(item(i)));
    return values;
  }

  /// A record: a list of N integers.
  template <class T, size_t N>
  std::array<T, N> fields() const {
    if (size() != N)
      throw Error(ErrorCode::invalid_argument, operation,
                  fmt::format("'{}' has the wrong length", name),
                  {name, fmt::format("a list of {}", size()), fmt::format("of {}", N), ""});
    std::array<T, N> values;
    for (size_t i = 0; i < N; ++i) {
      if constexpr (std::is_same_v<T, int32_t>) {
        values[i] = item(i).int32();
      } else {
        values[i] = item(i).int64();
      }
    }
    return values;
  }
};

}  // namespace verbatim
