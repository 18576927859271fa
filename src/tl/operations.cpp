// Compute: what each operation reads, and the shape and layout of what it makes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/names.h"
#include "tl/examine.h"
#include "verbatim/mask.h"

namespace verbatim::tl {
namespace {

using Into = Compute::Into;
using Extents = std::vector<std::string>;

}  // namespace

void Examiner::compute(const Compute& c, std::vector<Step>& steps) {
  const std::optional<Operation> operation = find_operation(c.operation.text);
  if (!operation) {
    if (c.into != Into::nothing) unknown_.insert(c.result.text);
    return report("operation", c.operation.at,
                  fmt::format("{} is no operation of Compute", c.operation.text),
                  nearest_name(c.operation.text, operation_words()));
  }
  switch (*operation) {
    case Operation::gemm:
      return gemm(c, steps);
    case Operation::fill:
      return fill(c, steps);
    case Operation::mask:
      return mask(c, steps);
    case Operation::softmax:
      return softmax(c, steps);
    case Operation::logsumexp:
      return logsumexp(c, steps);
    default:
      return elementwise(c, *operation, steps);
  }
}

bool Examiner::has_operands(const Compute& c, size_t operands, size_t least_with, size_t most_with,
                            const char* form) {
  const bool transposed = std::ranges::any_of(c.operands, &Operand::transposed) ||
                          std::ranges::any_of(c.with, &Operand::transposed);
  if (c.operands.size() == operands && c.with.size() >= least_with && c.with.size() <= most_with &&
      (!transposed || c.operation.text == "GEMM"))
    return true;
  report("operation", at_->at, fmt::format("{} has another form", c.operation.text), form);
  if (c.into != Into::nothing) unknown_.insert(c.result.text);
  return false;
}

void Examiner::gemm(const Compute& c, std::vector<Step>& steps) {
  if (!has_operands(c, 2, 0, 0, "Compute GEMM A, B^T and get S")) return;
  if (c.into != Into::get && c.into != Into::accumulate)
    return report("operation", at_->at, "GEMM makes another tile",
                  "and get S, or and accumulate S");
  const Operand &first = c.operands[0], &second = c.operands[1];
  const int a = read(first, true), b = read(second, true);
  const bool good =
      a >= 0 && b >= 0 && check_factor(first, a, true) && check_factor(second, b, false);
  if (!good) return void(unknown_.insert(c.result.text));
  check_transposition(c, a, b);
  Extents of_a = kernel_.variables[a].shape, of_b = kernel_.variables[b].shape;
  if (first.transposed) std::ranges::reverse(of_a);
  if (second.transposed) std::ranges::reverse(of_b);
  // A factor whose transposition is at fault is taken as it should be.
  if (!equal(of_a[1], of_b[0])) {
    if (equal(of_a[1], of_b[1])) {
      std::ranges::reverse(of_b);
    } else if (equal(of_a[0], of_b[0])) {
      std::ranges::reverse(of_a);
    }
  }
  const Extents made{of_a[0], of_b[1]};
  const bool accumulate = c.into == Into::accumulate;
  if (accumulate) {
    const int v = find(c.result.text, Memory::registers);
    if ((v < 0 || !states_[v].written) && !unknown_.contains(c.result.text)) {
      const std::string line = fmt::format("Compute Fill {} with 0", c.result.text);
      report("start", c.result.at,
             fmt::format("{} is added to, and nothing says what it starts with", c.result.text),
             line, line_before(loop_ ? *loop_ : *at_, line));
    }
  }
  const int out = write(c.result.text, Memory::registers, c.result.at, made);
  steps.push_back({.kind = Step::Kind::compute,
                   .operation = Operation::gemm,
                   .out = out,
                   .a = a,
                   .b = b,
                   .a_transposed = first.transposed,
                   .b_transposed = second.transposed,
                   .accumulate = accumulate,
                   .at = at_->at});
}

/// What a matrix instruction can read: tiles in shared memory, and in registers a first factor
/// that is not transposed and laid out as one.
bool Examiner::check_factor(const Operand& operand, int v, bool first) {
  const Variable& variable = kernel_.variables[v];
  if (variable.shape.size() != 2) {
    report("shape", operand.at, fmt::format("{} is no tile", operand.text), "rows and columns");
    return false;
  }
  if (variable.memory == Memory::shared) return true;
  if (!first || operand.transposed) {
    const std::string line = fmt::format("Copy {} from register to shared", operand.text);
    report("level", operand.at,
           fmt::format("{} is in registers, from where only a first factor can come, as it is",
                       operand.text),
           line, line_before(*at_, line));
    return false;
  }
  if (states_[v].layout == Layout::product && !options_.sketch) {
    const std::string line = fmt::format(
        "Reshape {} from (MMA_C, MMA_M, MMA_N) to (MMA_A, MMA_M, MMA_N_new)", operand.text);
    report("reshape", operand.at,
           fmt::format("{} is laid out as the product that it is (MMA_C), not as a factor",
                       operand.text),
           line, line_before(*at_, line));
    states_[v].layout = Layout::factor;
  }
  return true;
}

/// Of the factors of a product the inner extents are the same. Where they are after transposing
/// one, that is what was meant.
void Examiner::check_transposition(const Compute& c, int a, int b) {
  Extents of_a = kernel_.variables[a].shape, of_b = kernel_.variables[b].shape;
  const Operand &first = c.operands[0], &second = c.operands[1];
  if (first.transposed) std::ranges::reverse(of_a);
  if (second.transposed) std::ranges::reverse(of_b);
  if (equal(of_a[1], of_b[0])) return;
  const bool by_second = equal(of_a[1], of_b[1]), by_first = equal(of_a[0], of_b[0]);
  if (!by_second && !by_first)
    return report("shape", second.at,
                  fmt::format("{} {} cannot be multiplied by {} {}", first.text, shown(of_a),
                              second.text, shown(of_b)),
                  fmt::format("a factor with {} rows", of_a[1]));
  const Operand& wrong = by_second ? second : first;
  const std::string right = wrong.text + (wrong.transposed ? "" : "^T");
  report("transpose", wrong.at,
         fmt::format("{} {} times {} {}: the inner extents differ", first.text, shown(of_a),
                     second.text, shown(of_b)),
         right, Edit{wrong.at.begin, wrong.at.end, right});
}

void Examiner::fill(const Compute& c, std::vector<Step>& steps) {
  if (!has_operands(c, 1, 1, 1, "Compute Fill A with 0")) return;
  if (!c.with[0].number || c.operands[0].number || c.into != Into::nothing)
    return report("operation", at_->at, "Fill sets a tile to a number", "Compute Fill A with 0");
  const int out = write(c.operands[0].text, Memory::registers, c.operands[0].at, {});
  steps.push_back({.kind = Step::Kind::compute,
                   .operation = Operation::fill,
                   .out = out,
                   .number = c.with[0].number,
                   .at = at_->at});
}

/// Where the result of an operation on `in_place` goes.
int Examiner::result_of(const Compute& c, int in_place, const Extents& shape) {
  if (c.into == Into::nothing) return in_place;
  if (c.into == Into::accumulate) {
    report("operation", at_->at, "only GEMM accumulates", "and get " + c.result.text);
    return -1;
  }
  if (c.into == Into::get_new && read(c.result.text, c.result.at, Memory::registers) < 0) return -1;
  return write(c.result.text, Memory::registers, c.result.at, shape);
}

void Examiner::elementwise(const Compute& c, Operation operation, std::vector<Step>& steps) {
  if (!has_operands(c, 2, 0, 0, "Compute Multiply A, b and get new A")) return;
  if (c.into == Into::nothing)
    return report(
        "operation", at_->at, "nothing says where the result goes",
        fmt::format("and get new {}", c.operands[0].text),
        Edit{at_->at.end, at_->at.end, fmt::format(" and get new {}", c.operands[0].text)});
  Step step{.kind = Step::Kind::compute, .operation = operation, .at = at_->at};
  step.a = read(c.operands[0]);
  const Operand& second = c.operands[1];
  if (second.number) {
    step.number = second.number;
  } else if (second.text == "scale") {
    step.by_scale = true;
  } else {
    step.b = read(second);
    if (step.b < 0) step.a = -1;
  }
  if (step.a < 0) return void(unknown_.insert(c.result.text));
  const Extents shape = kernel_.variables[step.a].shape;
  if (step.b >= 0) {
    Extents& of_b = kernel_.variables[step.b].shape;
    if (of_b.empty()) of_b = shape;
    if (!shape.empty() && !equal(of_b, shape) && !equal(of_b, {shape[0]}))
      report("shape", second.at,
             fmt::format("{} {} and {} {}", c.operands[0].text, shown(shape), second.text,
                         shown(of_b)),
             fmt::format("{}, or one number a row: ({})", shown(shape), shape[0]));
  }
  const bool masked = states_[step.a].masked || (step.b >= 0 && states_[step.b].masked);
  if (masked && (operation == Operation::multiply || operation == Operation::divide))
    report("mask", at_->at, "scores are masked already: their -inf times a number below 0 is inf",
           "Mask behind the last scaling");
  step.out = result_of(c, step.a, shape);
  if (step.out < 0) return;
  states_[step.out].masked = masked;
  steps.push_back(std::move(step));
}

void Examiner::mask(const Compute& c, std::vector<Step>& steps) {
  if (!has_operands(c, 1, 0, 1, "Compute Mask S")) return;
  if (c.into != Into::nothing) {
    unknown_.insert(c.result.text);
    return report("operation", at_->at, "Mask hides pairs in the tile itself", "Compute Mask S");
  }
  const int s = read(c.operands[0]);
  if (s < 0) return;
  states_[s].masked = true;
  if (!c.with.empty()) {
    const std::vector<std::string> known(masks::names().begin(), masks::names().end());
    const Span at = c.with[0].at;
    const std::string named(text_.substr(at.begin, at.end - at.begin));  // or a number
    if (std::ranges::find(known, named) == known.end())
      return report("mask", at, fmt::format("there is no mask {}", named),
                    fmt::format("{} ({})", nearest_name(named, known), fmt::join(known, ", ")));
    if (!kernel_.mask.empty() && kernel_.mask != named)
      return report("mask", at, "a problem has one mask, and the program named another before",
                    kernel_.mask);
    kernel_.mask = named;
  }
  if (!kernel_.index.empty()) check_mask_of_index(c);
  if (!equal(kernel_.variables[s].shape, {"BM", "BN"}))
    return report("shape", c.operands[0].at,
                  fmt::format("a mask hides pairs of queries and keys; {} is {}",
                              c.operands[0].text, shown(kernel_.variables[s].shape)),
                  "(BM, BN)");
  steps.push_back(
      {.kind = Step::Kind::compute, .operation = Operation::mask, .out = s, .a = s, .at = at_->at});
}

/// Without a plan nothing knows which blocks any other mask shows.
void Examiner::check_mask_of_index(const Compute& c) {
  const auto known = index_masks();
  if (std::ranges::find(known, kernel_.mask) != known.end()) return;
  const Span at = c.with.empty() ? Span{at_->at.end, at_->at.end} : c.with[0].at;
  report("mask", c.with.empty() ? at_->at : at,
         fmt::format("{} names the blocks, so that no plan knows the tiles of {}", kernel_.index,
                     c.with.empty() ? "any mask" : kernel_.mask),
         fmt::format("with {}", fmt::join(known, " or ")),
         Edit{at.begin, at.end, std::string(c.with.empty() ? " with " : "") + known.front()});
}

void Examiner::softmax(const Compute& c, std::vector<Step>& steps) {
  const char* form = "Compute Softmax S with m and l, or Compute Softmax S with L and get P";
  if (!has_operands(c, 1, 0, 2, form)) return;
  const int s = read(c.operands[0]);
  if (s < 0) {
    if (c.into != Into::nothing) unknown_.insert(c.result.text);
    return;
  }
  const Extents shape = kernel_.variables[s].shape;
  if (shape.size() != 2)
    return report("shape", c.operands[0].at, fmt::format("{} is no tile", c.operands[0].text),
                  "rows and columns");
  if (c.with.empty()) {
    if (c.into != Into::nothing) unknown_.insert(c.result.text);
    return report("operation", at_->at,
                  "a row of scores spans many tiles: its softmax has a running maximum and sum",
                  to_string(*at_) + " with m and l");
  }
  if (!states_[s].masked) {
    const std::string line = fmt::format("Compute Mask {}", c.operands[0].text);
    report("mask", c.operands[0].at,
           "pairs that the mask hides, and what lies behind the end of a tile, would count", line,
           line_before(*at_, line));
  }
  Step step{.kind = Step::Kind::compute, .operation = Operation::softmax, .a = s, .at = at_->at};
  if (c.with.size() == 2) {
    step.b = started(c.with[0], {shape[0]}, "-inf");
    step.c = started(c.with[1], {shape[0]}, "0");
  } else {
    step.b = read(c.with[0]);
    if (step.b >= 0) fits(step.b, {shape[0]}, c.with[0].at);
  }
  if (step.b < 0 || (c.with.size() == 2 && step.c < 0)) {
    if (c.into != Into::nothing) unknown_.insert(c.result.text);
    return;
  }
  step.out = result_of(c, s, shape);
  if (step.out < 0) return;
  states_[step.out].masked = false;  // weights, 0 where they are hidden
  steps.push_back(std::move(step));
}

/// A running value that the loop updates; reported, and written, when nothing started it.
int Examiner::started(const Operand& operand, const Extents& shape, const char* start) {
  const int v = find(operand.text, Memory::registers);
  if (v >= 0 && states_[v].written) return fits(v, shape, operand.at) ? v : -1;
  if (operand.number) return read(operand);
  const std::string line = fmt::format("Compute Fill {} with {}", operand.text, start);
  report(
      "start", operand.at,
      fmt::format("{} runs through the visits, and nothing says what it starts with", operand.text),
      line, line_before(loop_ ? *loop_ : *at_, line));
  return write(operand.text, Memory::registers, operand.at, shape);
}

void Examiner::logsumexp(const Compute& c, std::vector<Step>& steps) {
  if (!has_operands(c, 2, 0, 0, "Compute LogSumExp m, l and get L")) return;
  if (c.into == Into::nothing)
    return report("operation", at_->at, "nothing says where the result goes", "and get L");
  const int m = read(c.operands[0]), l = read(c.operands[1]);
  if (m < 0 || l < 0) return void(unknown_.insert(c.result.text));
  fits(l, kernel_.variables[m].shape, c.operands[1].at);
  const int out = result_of(c, m, kernel_.variables[m].shape);
  if (out < 0) return;
  steps.push_back({.kind = Step::Kind::compute,
                   .operation = Operation::logsumexp,
                   .out = out,
                   .a = m,
                   .b = l,
                   .at = at_->at});
}

}  // namespace verbatim::tl
