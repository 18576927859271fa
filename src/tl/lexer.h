// The words of TL.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tl/ast.h"
#include "verbatim/tl.h"

namespace verbatim::tl {

/// What lexer and parser throw; parse() catches it.
struct Fault {
  Diagnostic diagnostic;
};
[[noreturn]] void fault(std::string code, Span at, std::string reason, std::string right);

struct Token {
  enum class Kind { word, number, symbol, comment, end } kind;
  std::string_view text;  // a comment's without its slashes and surrounding blanks
  Span at;
  bool starts_line;  // nothing but blanks before it
  bool apart;        // starts a line after a blank one
  int64_t indent;    // characters before it in its line
};

/// The tokens of `text`, the last of kind `end`. Throws Fault.
std::vector<Token> tokens(std::string_view text);

}  // namespace verbatim::tl
