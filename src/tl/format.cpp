// The one layout of a program: two blanks a loop, one blank line at most, comments kept.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <charconv>

#include "tl/ast.h"
#include "tl/parser.h"

namespace verbatim::tl {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

/// Without an exponent, which TL has not.
std::string number(double value) {
  std::array<char, 400> digits{};
  const auto end = std::to_chars(digits.begin(), digits.end(), value, std::chars_format::fixed).ptr;
  return {digits.begin(), end};
}

std::string to_text(const Operand& o) {
  if (o.number) return number(*o.number);
  return o.text + (o.transposed ? "^T" : "");
}

std::string list(const std::vector<Operand>& operands, const char* between) {
  std::vector<std::string> texts;
  for (const Operand& o : operands) texts.push_back(to_text(o));
  return fmt::format("{}", fmt::join(texts, between));
}

std::string to_text(const Coordinate& c) {
  return fmt::format(" in coordinate [{} = {}{}]", c.axis.text, c.index.text,
                     c.inner ? "[" + c.inner->text + "]" : "");
}

/// A layout of one word is written without parentheses.
std::string layout(const Shape& shape) {
  return shape.dims.size() == 1 ? shape.dims.front().text : to_string(shape);
}

std::string to_text(const Move& m) {
  std::string text = m.ordered ? (*m.ordered ? "Reduce ordered " : "Reduce unordered ") : "Copy ";
  text += m.name.text;
  if (m.shape) text += " " + to_string(*m.shape);
  if (m.coordinate) text += to_text(*m.coordinate);
  text += fmt::format(" from {} to {}", to_string(m.from), to_string(m.to));
  if (m.ordered) text += " as addend";
  if (m.factor) text += " with " + to_text(*m.factor);
  if (m.result) text += " and get " + m.result->text;
  return text;
}

std::string to_text(const Compute& c) {
  using Into = Compute::Into;
  std::string text = fmt::format("Compute {} {}", c.operation.text, list(c.operands, ", "));
  if (!c.with.empty()) text += " with " + list(c.with, " and ");
  if (c.into == Into::get) text += " and get " + c.result.text;
  if (c.into == Into::get_new) text += " and get new " + c.result.text;
  if (c.into == Into::accumulate) text += " and accumulate " + c.result.text;
  return text;
}

void write(const std::vector<std::string>& comments, const std::string& indent, std::string& text) {
  for (const std::string& comment : comments) {
    if (comment != "\n") text += indent + (comment.empty() ? "//" : "// " + comment);
    text += "\n";
  }
}

void write(const std::vector<Statement>& statements, int depth, std::string& text) {
  const std::string indent(2 * depth, ' ');
  bool first = true;
  const auto line = [&](const std::string& words) { text += indent + words + "\n"; };
  for (const Statement& s : statements) {
    if (s.apart && !first) text += "\n";
    first = false;
    write(s.comments, indent, text);
    line(to_string(s) + (s.comment.empty() ? "" : "  // " + s.comment));
    if (const Loop* loop = std::get_if<Loop>(&s.node)) {
      write(loop->body, depth + 1, text);
      write(loop->comments, indent + "  ", text);
      line("end");
    }
  }
}

}  // namespace

const char* to_string(Memory memory) {
  return memory == Memory::global ? "global" : memory == Memory::shared ? "shared" : "register";
}

std::string to_string(const Shape& shape) {
  std::vector<std::string> texts;
  for (const Dim& dim : shape.dims) texts.push_back(dim.text);
  return fmt::format("({})", fmt::join(texts, ", "));
}

std::string to_string(const Statement& statement) {
  return std::visit(
      Overloaded{[](const Param& p) {
                   return "param " + p.name.text + (p.value ? " = " + p.value->text : "");
                 },
                 [](const Allocate& a) {
                   return fmt::format("Allocate {} in {} {}{}", a.name.text, to_string(a.memory),
                                      to_string(a.shape),
                                      a.offset ? " with offset " + a.offset->text : "");
                 },
                 [](const Move& m) { return to_text(m); },
                 [](const Compute& c) { return to_text(c); },
                 [](const Reshape& r) {
                   return fmt::format("Reshape {} from {} to {}", r.name.text, layout(r.from),
                                      layout(r.to));
                 },
                 [](const Wait& w) { return "Wait " + w.name.text; },
                 [](const Ellipsis&) { return std::string("..."); },
                 [](const Loop& l) {
                   return fmt::format("for {} = {}:{}", l.variable.text, l.begin.text, l.end.text);
                 }},
      statement.node);
}

std::string to_string(const Program& program) {
  std::string text;
  write(program.statements, 0, text);
  write(program.comments, "", text);
  return text;
}

std::string format(std::string_view text, std::string_view file) {
  return to_string(parse_whole(text, file, "tl.fmt"));
}

}  // namespace verbatim::tl
