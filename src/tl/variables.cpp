// Variables of the checker: what is written, where, in which shape.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "core/names.h"
#include "tl/examine.h"

namespace verbatim::tl {

std::vector<std::string> names_of(const Shape& shape) {
  std::vector<std::string> names;
  for (const Dim& dim : shape.dims) names.push_back(dim.text);
  return names;
}

Shape shape_of(const std::vector<std::string>& names) {
  Shape shape;
  for (const std::string& name : names) shape.dims.push_back({name, {}, {}});
  return shape;
}

int Examiner::find(const std::string& name, Memory memory) const {
  const auto found = by_name_.find({name, memory});
  return found == by_name_.end() ? -1 : found->second;
}

int Examiner::variable(const std::string& name, Memory memory, Span at) {
  const auto [place, added] = by_name_.try_emplace({name, memory}, std::ssize(states_));
  if (added) {
    kernel_.variables.push_back({.name = name, .memory = memory, .at = at});
    states_.emplace_back();
  }
  return place->second;
}

int Examiner::read(const Operand& operand, bool by_mma) {
  if (operand.number) {
    report("operation", operand.at, "a tile is read here", "a variable");
    return -1;
  }
  const int in_shared = find(operand.text, Memory::shared);
  const int in_registers = find(operand.text, Memory::registers);
  const auto written = [&](int v) { return v >= 0 && states_[v].written; };
  if (by_mma && written(in_shared)) return arrived(in_shared, operand.at) ? in_shared : -1;
  if (written(in_registers)) {
    if (by_mma || states_[in_registers].layout == Layout::product) return in_registers;
    report("layout", operand.at,
           fmt::format("{} is laid out as a factor (MMA_A), rounded to the dtype", operand.text),
           "the statement before the Reshape");
    return -1;
  }
  if (written(in_shared)) {
    const std::string line = fmt::format("Copy {} from shared to register", operand.text);
    report("level", operand.at, "Compute reads registers, and GEMM shared memory as well", line,
           line_before(*at_, line));
    unknown_.insert(operand.text);
    return -1;
  }
  report_undefined(operand.text, operand.at, by_mma);
  return -1;
}

int Examiner::read(const std::string& name, Span at, Memory memory) {
  const int v = find(name, memory);
  if (v >= 0 && states_[v].written) return arrived(v, at) ? v : -1;
  report_undefined(name, at, memory == Memory::shared);
  return -1;
}

bool Examiner::arrived(int v, Span at) {
  State& state = states_[v];
  if (!state.arriving) return true;
  state.arriving = false;
  const std::string line = "Wait " + kernel_.variables[v].name;
  const Statement& place = loop_ && !state.arrives_in_loop ? *loop_ : *at_;
  report("race", at,
         fmt::format("{} is copied {} and may not have arrived", kernel_.variables[v].name,
                     target_->async_copies ? "in the background" : "by all threads together"),
         line, line_before(place, line));
  return true;
}

void Examiner::report_undefined(const std::string& name, Span at, bool by_mma) {
  if (!unknown_.insert(name).second) return;
  const Tensor* tensor = find_tensor(name);
  if (tensor && tensor->role(kernel_.pass) == Tensor::Role::in) {
    const std::string line =
        fmt::format("Copy {} from global to {}", name, tensor->columns ? "shared" : "register");
    return report("undefined", at, fmt::format("{} is still in global memory", name), line,
                  line_before(*at_, line));
  }
  std::vector<std::string> known;
  for (size_t v = 0; v < states_.size(); ++v)
    if (states_[v].written) known.push_back(kernel_.variables[v].name);
  const bool mentioned = find(name, Memory::registers) >= 0 || find(name, Memory::shared) >= 0;
  report("undefined", at,
         fmt::format("nothing has written {} {}", name,
                     loop_done_ && mentioned ? "where a chain has no visit" : "before"),
         known.empty() || mentioned
             ? fmt::format("a {} that makes {}", by_mma ? "Copy" : "Compute", name)
             : nearest_name(name, known));
}

int Examiner::write(const std::string& name, Memory memory, Span at,
                    std::vector<std::string> shape) {
  const int v = variable(name, memory, at);
  unknown_.erase(name);
  if (!fits(v, shape, at)) kernel_.variables[v].shape = std::move(shape);
  State& state = states_[v];
  state.written = true;
  state.masked = state.arriving = false;
  state.layout = Layout::product;
  return v;
}

bool Examiner::fits(int v, const std::vector<std::string>& shape, Span at) {
  std::vector<std::string>& known = kernel_.variables[v].shape;
  if (shape.empty()) return true;
  if (known.empty()) known = shape;
  if (equal(known, shape)) return true;
  report("shape", at,
         fmt::format("{} is {} and would become {}", kernel_.variables[v].name, shown(known),
                     shown(shape)),
         shown(shape));
  return false;
}

bool Examiner::equal(const std::vector<std::string>& a, const std::vector<std::string>& b) const {
  return std::ranges::equal(
      a, b, [&](const std::string& x, const std::string& y) { return equal(x, y); });
}

/// By name, so that BM is not BN though both be 128; a bare number is any parameter of that value.
bool Examiner::equal(const std::string& a, const std::string& b) const {
  if (a == b) return true;
  const bool bare = !numbers_.contains(a) || !numbers_.contains(b);
  return bare && extent(a) > 0 && extent(a) == extent(b);
}

int64_t Examiner::extent(const std::string& name) const {
  const auto found = numbers_.find(name);
  if (found != numbers_.end()) return found->second;
  return name.find_first_not_of("0123456789") == std::string::npos ? std::stoll(name) : 0;
}

std::string Examiner::shown(const std::vector<std::string>& shape) {
  return fmt::format("({})", fmt::join(shape, ", "));
}

}  // namespace verbatim::tl
