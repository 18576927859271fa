// From text to the syntax tree: recursive descent over the grammar of docs/tl.md.
#pragma once

#include <optional>
#include <string_view>

#include "tl/ast.h"
#include "verbatim/tl.h"

namespace verbatim::tl {

struct Parsed {
  Program program;                  // what was read before the fault
  std::optional<Diagnostic> fault;  // the first
};
Parsed parse(std::string_view text);

/// The program of `text`. Throws Error(invalid_argument) in the name of `operation` with the
/// described fault when it does not parse.
Program parse_whole(std::string_view text, std::string_view file, const char* operation);

}  // namespace verbatim::tl
