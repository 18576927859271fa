// The syntax tree of TL. Every part knows its bytes in the text, for messages and edits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace verbatim::tl {

/// Bytes [begin, end) of the text.
struct Span {
  int64_t begin = 0, end = 0;
};

struct Name {
  std::string text;
  Span at;
};

/// An extent: a parameter's name or a number.
struct Dim {
  std::string text;
  std::optional<int64_t> number;
  Span at;
};
struct Shape {
  std::vector<Dim> dims;
  Span at;
};

enum class Memory { global, shared, registers };

/// `[L = i]`: block i of the tensor's length; `[L = sel[i]]`: the block that entry i of `sel`
/// names.
struct Coordinate {
  Name axis, index;
  std::optional<Name> inner;
  Span at;
};

/// An argument of Compute: a variable, maybe transposed, or a number.
struct Operand {
  std::string text;  // of a variable
  bool transposed = false;
  std::optional<double> number;
  Span at;
};

struct Param {
  Name name;
  std::optional<Dim> value;
};
struct Allocate {
  Name name;
  Memory memory;
  Shape shape;
  std::optional<Name> offset;
};
/// Copy, or Reduce where `ordered` has a value: the tile is an addend of a sum in `to`.
struct Move {
  Name name;
  std::optional<Shape> shape;
  std::optional<Coordinate> coordinate;
  Memory from, to;
  Span from_at, to_at;
  std::optional<Name> result;     // its name there, when that is another
  std::optional<bool> ordered;    // Reduce: whether addends take turns
  std::optional<Operand> factor;  // Reduce: of the whole sum
  Span ordered_at;
};
struct Compute {
  Name operation;
  std::vector<Operand> operands;
  std::vector<Operand> with;
  enum class Into { nothing, get, get_new, accumulate } into = Into::nothing;
  Name result;
};
struct Reshape {
  Name name;
  Shape from, to;
};
/// Until the copies of a tile in the background have arrived.
struct Wait {
  Name name;
};
/// `...`: what the author leaves out.
struct Ellipsis {};

struct Statement;
struct Loop {
  Name variable;
  Dim begin, end;
  std::vector<Statement> body;
  std::vector<std::string> comments;  // before its end
};

struct Statement {
  std::variant<Param, Allocate, Move, Compute, Reshape, Wait, Ellipsis, Loop> node;
  Span at;                            // without comments; of a loop, its first line
  bool apart = false;                 // a blank line comes before it
  std::vector<std::string> comments;  // lines before it
  std::string comment;                // behind it
};

struct Program {
  std::vector<Statement> statements;
  std::vector<std::string> comments;  // after the last statement
};

const char* to_string(Memory memory);
/// A statement as the formatter writes it, without comments; of a loop, its first line.
std::string to_string(const Statement& statement);
std::string to_string(const Program& program);
std::string to_string(const Shape& shape);

}  // namespace verbatim::tl
