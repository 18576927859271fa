#include "tl/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <utility>

#include "core/names.h"
#include "tl/lexer.h"
#include "verbatim/error.h"

namespace verbatim::tl {
namespace {

constexpr int kDeepest = 8;  // loops inside loops

/// Words that are no names, in lower case.
constexpr std::array<std::string_view, 18> kReserved{
    "allocate", "copy", "compute", "reshape", "reduce", "wait", "param",      "for", "end",
    "in",       "from", "to",      "with",    "and",    "get",  "accumulate", "new", "as"};
const std::vector<std::string> kStatements{"Allocate", "Copy", "Compute", "Reshape",
                                           "Reduce",   "Wait", "param",   "for"};
const std::vector<std::string> kMemories{"global", "shared", "register"};

std::string lower(std::string_view word) {
  std::string text(word);
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c += 'a' - 'A';
  return text;
}

bool is_reserved(std::string_view word) {
  return std::ranges::find(kReserved, lower(word)) != kReserved.end();
}

class Parser {
 public:
  explicit Parser(std::string_view text) : tokens_(tokens(text)) { skip_comments(); }

  void program(Program& result) {
    while (here().kind != Token::Kind::end) {
      if (is("end")) unexpected("no end without a for", "a statement");
      result.statements.push_back(statement(0));
    }
    result.comments = std::move(comments_);
  }

 private:
  const Token& here() const { return tokens_[at_]; }
  bool is(std::string_view word) const {
    return (here().kind == Token::Kind::word || here().kind == Token::Kind::symbol) &&
           lower(here().text) == word;
  }
  void skip_comments() {
    for (; here().kind == Token::Kind::comment; ++at_) {
      note_blank_line();
      comments_.emplace_back(here().text);
    }
  }
  /// Between comments, and between them and what follows, a blank line is kept as "\n".
  void note_blank_line() {
    if (comments_.empty()) {
      apart_ = here().apart;
    } else if (here().apart) {
      comments_.emplace_back("\n");
    }
  }
  Token take() {
    const Token token = here();
    last_end_ = token.at.end;
    if (token.kind != Token::Kind::end) ++at_;
    // One behind the last word of a statement stays, for the statement to keep.
    if (here().kind == Token::Kind::comment && !here().starts_line) {
      if (!behind_.empty()) comments_.push_back(std::move(behind_));
      behind_ = here().text;
      ++at_;
    }
    skip_comments();
    return token;
  }
  bool accept(std::string_view word) {
    if (!is(word)) return false;
    take();
    return true;
  }
  std::string shown() const {
    if (here().kind == Token::Kind::end) return "the end of the text";
    return fmt::format("'{}'", here().text);
  }
  [[noreturn]] void unexpected(std::string_view why, std::string right) const {
    fault("syntax", here().at, fmt::format("{}; got {}", why, shown()), std::move(right));
  }
  void expect(std::string_view word, const char* after) {
    if (!accept(word))
      unexpected(fmt::format("{} goes on with '{}'", after, word), std::string(word));
  }

  Name name(const char* what) {
    if (here().kind != Token::Kind::word || is_reserved(here().text))
      unexpected(fmt::format("{} has a name here", what), "letters, digits and _");
    const Token token = take();
    return {std::string(token.text), token.at};
  }

  int64_t integer() {
    const Token token = here();
    int64_t value = 0;
    const auto [end, error] = std::from_chars(token.text.begin(), token.text.end(), value);
    if (error != std::errc() || end != token.text.end() ||
        value > std::numeric_limits<int32_t>::max())
      fault("number", token.at, "the number is no extent", "an integer below 2^31");
    take();
    return value;
  }

  Dim dim(const char* what) {
    const Token token = here();
    if (token.kind == Token::Kind::number) {
      const int64_t value = integer();
      return {fmt::to_string(value), value, token.at};
    }
    Name found = name(what);
    return {std::move(found.text), std::nullopt, found.at};
  }

  Shape shape() {
    Shape result{{}, here().at};
    expect("(", "a shape");
    do result.dims.push_back(dim("an extent"));
    while (accept(","));
    if (!is(")")) unexpected("a shape ends with ')'", ", or )");
    result.at.end = take().at.end;
    return result;
  }

  /// `(MMA_C, MMA_M, MMA_N)`, or its first word alone.
  Shape layout() {
    if (is("(")) return shape();
    const Dim only = dim("a layout");
    return {{only}, only.at};
  }

  std::pair<Memory, Span> memory() {
    const Token token = here();
    const std::string word = token.kind == Token::Kind::word ? lower(token.text) : "";
    const bool known = word == "global" || word == "shared" || word == "register";
    if (!known && word != "registers")
      unexpected("a memory level is missing", nearest_name(word, kMemories));
    take();
    accept("memory");
    return {word == "global"   ? Memory::global
            : word == "shared" ? Memory::shared
                               : Memory::registers,
            token.at};
  }

  Coordinate coordinate() {
    Coordinate result{{}, {}, {}, here().at};
    if (!accept("coordinate") && !accept("coor"))
      unexpected("'in' goes on with a coordinate", "coordinate [L = i]");
    expect("[", "a coordinate");
    result.axis = name("the axis of a coordinate");
    expect("=", "a coordinate");
    result.index = name("the block of a coordinate");
    if (accept("[")) {
      result.inner = name("the entry of an index tensor");
      expect("]", "an entry");
    }
    if (!is("]")) unexpected("a coordinate ends with ']'", "]");
    result.at.end = take().at.end;
    return result;
  }

  Operand operand() {
    const Token token = here();
    const bool negative = accept("-");
    if (here().kind == Token::Kind::number || (negative && is("inf"))) {
      double value = std::numeric_limits<double>::infinity();
      const Token digits = take();
      if (digits.kind == Token::Kind::number) {
        std::from_chars(digits.text.begin(), digits.text.end(), value);
        if (value > std::numeric_limits<float>::max())  // or too small for a double
          fault("number", digits.at, "f32 has no such number", "-inf, or digits that f32 holds");
      }
      return {"", false, negative ? -value : value, {token.at.begin, digits.at.end}};
    }
    Name variable = name("an operand");
    Operand result{std::move(variable.text), false, {}, variable.at};
    if (accept("^")) {
      if (!is("t")) unexpected("'^' goes on with T", "T");
      result.at.end = take().at.end;
      result.transposed = true;
    }
    return result;
  }

  Param param() {
    Param result{name("a parameter"), {}};
    if (accept("=")) result.value = dim("the value of a parameter");
    return result;
  }

  Allocate allocate() {
    Allocate result{name("what is allocated"), Memory::global, {}, {}};
    expect("in", "Allocate");
    result.memory = memory().first;
    result.shape = shape();
    if (accept("with")) {
      expect("offset", "with");
      result.offset = name("an offset");
    }
    return result;
  }

  Move move(bool reduces) {
    Move result{};
    const char* what = reduces ? "Reduce" : "Copy";
    if (reduces) {
      result.ordered_at = here().at;
      if (!is("ordered") && !is("unordered"))
        unexpected("Reduce says whether addends take turns", "ordered or unordered");
      result.ordered = lower(take().text) == "ordered";
    }
    result.name = name("what is moved");
    if (is("(")) result.shape = shape();
    if (accept("in")) result.coordinate = coordinate();
    expect("from", what);
    std::tie(result.from, result.from_at) = memory();
    expect("to", what);
    std::tie(result.to, result.to_at) = memory();
    if (reduces) {
      expect("as", what);
      expect("addend", "as");
      if (accept("with")) result.factor = operand();
    }
    if (accept("and")) {
      expect("get", "and");
      result.result = name("what a copy makes");
    }
    return result;
  }

  Compute compute() {
    Compute result{};
    result.operation = name("what is computed");
    do result.operands.push_back(operand());
    while (accept(","));
    bool more = accept("with");
    if (more) result.with.push_back(operand());
    while (accept("and")) {
      if (is("get") || is("accumulate")) {
        into(result);
        break;
      }
      if (!more) unexpected("'and' goes on with the result", "get or accumulate");
      result.with.push_back(operand());
    }
    return result;
  }

  void into(Compute& result) {
    using Into = Compute::Into;
    result.into = accept("accumulate") ? Into::accumulate : Into::get;
    if (result.into == Into::get) {
      expect("get", "and");
      if (accept("new")) result.into = Into::get_new;
    }
    result.result = name("the result");
  }

  Reshape reshape() {
    Reshape result{name("what is reshaped"), {}, {}};
    expect("from", "Reshape");
    result.from = layout();
    expect("to", "Reshape");
    result.to = layout();
    return result;
  }

  Statement statement(int depth) {
    note_blank_line();
    Statement result{Ellipsis{}, here().at, apart_, std::exchange(comments_, {}), ""};
    const bool known = here().kind == Token::Kind::word || is("...");
    const int64_t indent = here().indent;
    const std::string word = known ? lower(take().text) : "";
    if (word == "param") {
      result.node = param();
    } else if (word == "allocate") {
      result.node = allocate();
    } else if (word == "copy" || word == "reduce") {
      result.node = move(word == "reduce");
    } else if (word == "compute") {
      result.node = compute();
    } else if (word == "reshape") {
      result.node = reshape();
    } else if (word == "wait") {
      result.node = Wait{name("what is waited for")};
    } else if (word == "for") {
      return loop(std::move(result), indent, depth);
    } else if (word != "...") {
      fault("syntax", result.at, "no statement begins like this",
            nearest_name(known ? word : "", kStatements));
    }
    result.at.end = last_end_;
    result.comment = std::exchange(behind_, "");
    return result;
  }

  /// A loop ends with `end`; one whose first line ends with a colon, also where a line starts no
  /// further right than the loop does.
  Statement loop(Statement result, int64_t indent, int depth) {
    if (depth == kDeepest) fault("depth", result.at, "loops lie too deep in loops", "fewer loops");
    Loop made{name("the variable of a loop"), {}, {}, {}, {}};
    if (!accept("=")) expect("in", "for");
    made.begin = dim("the first block of a loop");
    expect(":", "for");
    made.end = dim("the blocks of a loop");
    const bool by_indent = accept(":");
    result.at.end = last_end_;
    result.comment = std::exchange(behind_, "");
    const auto ended = [&] { return by_indent && here().starts_line && here().indent <= indent; };
    while (!is("end") && !ended()) {
      if (here().kind == Token::Kind::end) {
        if (by_indent) break;
        unexpected("the loop has no end", "end");
      }
      made.body.push_back(statement(depth + 1));
    }
    if (is("end") && (!by_indent || !here().starts_line || here().indent >= indent)) {
      made.comments = std::exchange(comments_, {});
      take();
      if (!behind_.empty()) made.comments.push_back(std::exchange(behind_, ""));
    }
    result.node = std::move(made);
    return result;
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int64_t last_end_ = 0;               // of the token taken last
  std::vector<std::string> comments_;  // lines that belong to the next statement
  bool apart_ = false;                 // a blank line comes before these, or before the statement
  std::string behind_;                 // of the current line
};

}  // namespace

Parsed parse(std::string_view text) {
  Parsed result;
  try {
    Parser(text).program(result.program);
  } catch (Fault& fault) {
    result.fault = std::move(fault.diagnostic);
  }
  return result;
}

Program parse_whole(std::string_view text, std::string_view file, const char* operation) {
  Parsed parsed = parse(text);
  if (parsed.fault)
    throw Error(ErrorCode::invalid_argument, operation,
                "the program does not parse\n" + describe(*parsed.fault, text, file));
  return std::move(parsed.program);
}

}  // namespace verbatim::tl
