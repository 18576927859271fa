// Which known name a misspelt one means.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace verbatim {

/// The name with the smallest edit distance to `name`; the first of equals. "" when none is known.
std::string nearest_name(std::string_view name, std::span<const std::string> known);

}  // namespace verbatim
