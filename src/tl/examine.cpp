#include "tl/examine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/names.h"
#include "core/sha256.h"
#include "tl/parser.h"
#include "verbatim/error.h"

namespace verbatim::tl {
namespace {

constexpr int64_t kMostFaults = 100;
constexpr const char* kLayoutChange = "from (MMA_C, MMA_M, MMA_N) to (MMA_A, MMA_M, MMA_N_new)";

bool is_layout(const Shape& shape, std::string_view word) {
  if (shape.dims.empty()) return false;
  std::string first = shape.dims.front().text;
  std::ranges::transform(first, first.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  return first == word;
}

bool in_header(const Statement& s) {
  return std::holds_alternative<Param>(s.node) || std::holds_alternative<Allocate>(s.node);
}

}  // namespace

Examiner::Examiner(std::string_view text, const Program& program, const CheckOptions& options)
    : text_(text), program_(program), options_(options), kernel_(result_.kernel) {
  if (!options.target.empty()) target_ = &find_target(options.target);
}

Examined Examiner::run() {
  read_parameters();
  walk(program_.statements, kernel_.before);
  if (!loop_done_) {
    report("loop", at_ ? at_->at : Span{}, "no loop visits the tiles of the other axis",
           "for i = 0:N ... end");
  }
  check_allocations();
  check_outputs();
  collect_rescaled();
  if (!options_.sketch && result_.faults.empty()) check_target();
  std::ranges::stable_sort(result_.faults, {}, &Diagnostic::begin);
  return std::move(result_);
}

void Examiner::read_parameters() {
  for (const Statement& s : program_.statements)
    if (const Param* p = std::get_if<Param>(&s.node)) read_parameter(*p);
  const std::string pass = word_parameter("pass", {"forward", "backward"});
  kernel_.pass = pass == "backward" ? Pass::backward : Pass::forward;
  read_index();
  if (options_.sketch) return;
  std::vector<std::string> known;
  for (const Target& target : targets()) known.emplace_back(target.name);
  kernel_.target = word_parameter("target", known);
  if (!target_ && std::ranges::find(known, kernel_.target) != known.end())
    target_ = &find_target(kernel_.target);
  const std::string dtype = word_parameter("dtype", {"bf16", "f16", "e4m3"});
  for (const Dtype known : {Dtype::f16, Dtype::e4m3})
    if (dtype == to_string(known)) kernel_.dtype = known;
  kernel_.head_dim = parameter("HeadDim", 1, 256);
  kernel_.head_dim_v = parameter("HeadDimV", 1, 256);
  kernel_.tile = {parameter("BM", 1, kMostOfATile), parameter("BN", 1, kMostOfATile)};
  kernel_.stages = parameter("stages", 1, kMostStages);
  kernel_.warps = parameter("warps", 1, kMostWarps);
}

void Examiner::read_parameter(const Param& p) {
  if (!params_.emplace(p.name.text, p).second)
    return report("parameter", p.name.at, fmt::format("{} is a parameter twice", p.name.text),
                  "one line for each");
  if (!p.value && !options_.sketch)
    return report("parameter", p.name.at, fmt::format("{} has no value", p.name.text),
                  fmt::format("param {} = ...", p.name.text));
  if (p.value && p.value->number) numbers_[p.name.text] = *p.value->number;
}

int64_t Examiner::parameter(const char* name, int64_t least, int64_t most) {
  const auto found = params_.find(name);
  const std::string right = fmt::format("param {} = a number from {} to {}", name, least, most);
  if (found == params_.end()) {
    report("parameter", {}, fmt::format("the program has no {}", name), right);
  } else if (found->second.value) {
    const Dim& value = *found->second.value;
    if (value.number && *value.number >= least && *value.number <= most) return *value.number;
    report("parameter", value.at, fmt::format("{} cannot be {}", name, value.text), right);
  }
  return 0;
}

std::string Examiner::word_parameter(const char* name, const std::vector<std::string>& known) {
  const auto found = params_.find(name);
  const std::string right = fmt::format("param {} = {}", name, fmt::join(known, " or "));
  if (found == params_.end() || !found->second.value) {
    report("parameter", found == params_.end() ? Span{} : found->second.name.at,
           fmt::format("the program has no {}", name), right);
    return "";
  }
  const Dim& value = *found->second.value;
  if (std::ranges::find(known, value.text) == known.end()) {
    const std::string nearest = nearest_name(value.text, known);
    report("parameter", value.at, fmt::format("{} cannot be {}", name, value.text),
           fmt::format("{} ({})", nearest, fmt::join(known, ", ")));
  }
  return value.text;
}

void Examiner::walk(const std::vector<Statement>& statements, std::vector<Step>& outer) {
  std::vector<Step>* steps = &outer;
  for (const Statement& s : statements) {
    at_ = &s;
    if (const Loop* l = std::get_if<Loop>(&s.node)) {
      enter(*l, s);
      steps = &kernel_.after;
    } else if (const Allocate* a = std::get_if<Allocate>(&s.node)) {
      allocate(*a);
    } else if (const Move* m = std::get_if<Move>(&s.node)) {
      move(*m, *steps);
    } else if (const Compute* c = std::get_if<Compute>(&s.node)) {
      compute(*c, *steps);
    } else if (const Reshape* r = std::get_if<Reshape>(&s.node)) {
      reshape(*r, *steps);
    } else if (const Wait* w = std::get_if<Wait>(&s.node)) {
      wait(*w, *steps);
    } else if (std::holds_alternative<Ellipsis>(s.node)) {
      report("elided", s.at, "'...' stands for statements that are not there", "the statements");
    }
  }
}

void Examiner::enter(const Loop& loop, const Statement& statement) {
  if (loop_ || loop_done_) {
    report("loop", statement.at, "a program has one loop, over the tiles that a chain visits",
           "one for ... end");
    return;
  }
  check_bounds(loop);
  std::vector<bool> before(states_.size());
  for (size_t v = 0; v < states_.size(); ++v) before[v] = states_[v].written;
  loop_ = &statement;
  walk(loop.body, kernel_.visit);
  loop_ = nullptr;
  loop_done_ = true;
  // A chain may have no visit: what only the loop writes is not there behind it.
  before.resize(states_.size());
  for (size_t v = 0; v < states_.size(); ++v) states_[v].written = before[v];
}

/// Of all visits: 0:N, in a backward, which visits tiles of M, also 0:M.
void Examiner::check_bounds(const Loop& loop) {
  const bool backward = kernel_.pass == Pass::backward;
  const std::string right = backward ? "0:N or 0:M" : "0:N";
  if (loop.begin.number != 0 || loop.end.number)
    return report("loop", loop.begin.number != 0 ? loop.begin.at : loop.end.at,
                  "the plan says how many tiles a chain visits, and which", right);
  const std::string& end = loop.end.text;
  if (end == "N" || (backward && end == "M")) return;
  report("loop", loop.end.at,
         fmt::format("the loop of a {} does not end at {}", to_string(kernel_.pass), end), right,
         Edit{loop.end.at.begin, loop.end.at.end, "N"});
}

void Examiner::allocate(const Allocate& a) {
  if (a.memory == Memory::global) return allocate_global(a);
  if (a.offset)
    report("offset", a.offset->at, "only tensors in global memory begin at an offset",
           "no offset here");
  for (const Dim& dim : a.shape.dims)
    if (!dim.number && !params_.contains(dim.text)) {
      std::vector<std::string> known;
      for (const auto& [name, value] : numbers_) known.push_back(name);
      report("parameter", dim.at, fmt::format("no parameter {} has a number", dim.text),
             known.empty() ? "a number" : nearest_name(dim.text, known));
    }
  if (a.shape.dims.size() > 2)
    return report("shape", a.shape.at, "a tile has rows and columns", "two extents or one");
  const bool used = find(a.name.text, a.memory) >= 0;
  const int v = variable(a.name.text, a.memory, at_->at);
  if (used && !states_[v].allocated)
    return report("twice", a.name.at, fmt::format("{} was used before this", a.name.text),
                  "Allocate before the first use");
  if (states_[v].allocated)
    return report("twice", a.name.at,
                  fmt::format("{} is allocated in {} twice", a.name.text, to_string(a.memory)),
                  "one Allocate");
  states_[v].allocated = true;
  kernel_.variables[v].shape = names_of(a.shape);
}

void Examiner::allocate_global(const Allocate& a) {
  const Tensor* tensor = find_tensor(a.name.text);
  if (!tensor || tensor->role(kernel_.pass) == Tensor::Role::absent) {
    std::vector<std::string> known;
    for (const Tensor& t : tensors())
      if (t.role(kernel_.pass) != Tensor::Role::absent) known.emplace_back(t.name);
    return report("tensor", a.name.at, fmt::format("the pass has no tensor {}", a.name.text),
                  nearest_name(a.name.text, known));
  }
  if (!globals_.insert(a.name.text).second)
    return report("twice", a.name.at, fmt::format("{} is allocated in global twice", a.name.text),
                  "one Allocate");
  const std::string whole = to_string(shape_of(tensor->whole()));
  if (names_of(a.shape) != tensor->whole())
    report("shape", a.shape.at, fmt::format("{} of one head is {}", a.name.text, whole), whole,
           Edit{a.shape.at.begin, a.shape.at.end, whole});
  if (!a.offset) {
    report("offset", at_->at, fmt::format("nothing says which head of {} is meant", a.name.text),
           fmt::format("with offset {}", tensor->offset()),
           Edit{at_->at.end, at_->at.end, fmt::format(" with offset {}", tensor->offset())});
  } else if (a.offset->text != tensor->offset()) {
    report("offset", a.offset->at, fmt::format("heads of {} begin elsewhere", a.name.text),
           tensor->offset(), Edit{a.offset->at.begin, a.offset->at.end, tensor->offset()});
  }
}

void Examiner::move(const Move& m, std::vector<Step>& steps) {
  const bool from_global = m.from == Memory::global, to_global = m.to == Memory::global;
  if (m.from == m.to)
    return report("level", m.to_at, "a copy goes from one memory level to another",
                  m.from == Memory::shared ? "register" : "shared");
  if (m.ordered && !to_global)
    return report("level", m.to_at, "sums of several addends are in global memory", "global");
  if (from_global || to_global) {
    const std::string& name = to_global && m.result ? m.result->text : m.name.text;
    const Tensor* tensor = find_tensor(name);
    const auto wanted = from_global ? Tensor::Role::in : Tensor::Role::out;
    if (!tensor || tensor->role(kernel_.pass) != wanted) {
      std::vector<std::string> known;
      for (const Tensor& t : tensors())
        if (t.role(kernel_.pass) == wanted) known.emplace_back(t.name);
      if (from_global) unknown_.insert(m.result ? m.result->text : m.name.text);
      return report("tensor", to_global && m.result ? m.result->at : m.name.at,
                    fmt::format("the pass {} no tensor {}", from_global ? "reads" : "writes", name),
                    fmt::format("{} ({})", nearest_name(name, known), fmt::join(known, ", ")));
    }
    return from_global ? load(m, *tensor, steps) : store(m, *tensor, steps);
  }
  const int a = read(m.name.text, m.name.at, m.from);
  const std::string& made = m.result ? m.result->text : m.name.text;
  if (a < 0) return void(unknown_.insert(made));
  const int out =
      write(made, m.to, m.result ? m.result->at : m.name.at, kernel_.variables[a].shape);
  steps.push_back({.kind = Step::Kind::move, .out = out, .a = a, .at = at_->at});
}

void Examiner::load(const Move& m, const Tensor& tensor, std::vector<Step>& steps) {
  const bool row = tensor.columns == nullptr;
  const Name& made = m.result ? *m.result : m.name;
  if (row == (m.to == Memory::shared)) {
    unknown_.insert(made.text);
    return report("level", m.to_at,
                  row ? "numbers of a row go to registers" : "tiles go through shared memory",
                  row ? "register" : "shared",
                  Edit{m.to_at.begin, m.to_at.end, row ? "register" : "shared"});
  }
  check_block(m, tensor);
  const int before = find(made.text, m.to);
  if (before >= 0 && states_[before].loaded)
    return report("twice", at_->at,
                  fmt::format("a second Copy of a tensor to {} in {}", made.text, to_string(m.to)),
                  "one Copy", removed(*at_));
  const int out = write(made.text, m.to, made.at, tensor.tile());
  states_[out].loaded = true;
  if (m.to == Memory::shared) {
    kernel_.variables[out].staged = loop_ != nullptr;
    states_[out].arriving = target_ && !options_.sketch;
    states_[out].arrives_in_loop = loop_ != nullptr;
  }
  steps.push_back({.kind = Step::Kind::load, .out = out, .tensor = &tensor, .at = at_->at});
}

void Examiner::store(const Move& m, const Tensor& tensor, std::vector<Step>& steps) {
  if (m.from != Memory::registers)
    return report("level", m.from_at, "results leave from registers", "register");
  const bool first = outputs_.insert(tensor.name).second;
  const bool sums = kernel_.pass == Pass::backward;
  if (sums && !first)  // the plan gives a visit one place in the sum
    return report("sum", at_->at, fmt::format("{} takes a second addend here", tensor.name),
                  fmt::format("one Reduce of {}", tensor.name));
  if (sums != m.ordered.has_value()) {
    Move right = m;
    right.ordered = sums ? std::optional(true) : std::nullopt;
    const std::string line = to_string(Statement{right, {}, false, {}, ""});
    return report(
        "sum", at_->at,
        sums ? fmt::format("{} is a sum of several addends: a copy loses all but one", tensor.name)
             : fmt::format("{} has one addend", tensor.name),
        line, replaced(*at_, line));
  }
  if (m.ordered == false && options_.level > Level::not_guaranteed)
    report("unordered", m.ordered_at,
           fmt::format("addends of {} come as they are ready, which keeps no level above "
                       "not_guaranteed",
                       tensor.name),
           "ordered", Edit{m.ordered_at.begin, m.ordered_at.end, "ordered"});
  if (tensor.kept(kernel_.pass) && loop_)
    return report("loop", at_->at,
                  fmt::format("{} of a chain is not complete before its last visit", tensor.name),
                  "the statement behind the loop's end");
  check_block(m, tensor);
  const int a = read(m.name.text, m.name.at, m.from);
  if (a < 0 || !fits(a, tensor.tile(), m.name.at)) return;
  const bool by_scale = m.factor && m.factor->text == "scale" && !m.factor->transposed;
  if (m.factor && !m.factor->number && !by_scale)
    return report("operation", m.factor->at, "a sum is multiplied by a number", "scale");
  for (const Step& step : kernel_.after)
    if (sums && step.out == a)
      report("sum", step.at,
             fmt::format("a chain may be cut in pieces, and each would do this to the sum of {}",
                         tensor.name),
             fmt::format("{} with scale, for the whole sum", to_string(*at_)));
  steps.push_back({.kind = sums ? Step::Kind::reduce : Step::Kind::store,
                   .a = a,
                   .number = m.factor ? m.factor->number : std::nullopt,
                   .by_scale = by_scale,
                   .tensor = &tensor,
                   .at = at_->at});
}

void Examiner::reshape(const Reshape& r, std::vector<Step>& steps) {
  const int v = read(r.name.text, r.name.at, Memory::registers);
  if (v < 0) return;
  if (!is_layout(r.from, "MMA_C") || !is_layout(r.to, "MMA_A"))
    return report("layout", is_layout(r.from, "MMA_C") ? r.to.at : r.from.at,
                  "a product becomes the first factor of the next", kLayoutChange);
  if (states_[v].layout == Layout::factor || kernel_.variables[v].shape.size() != 2)
    return report("layout", r.name.at,
                  fmt::format("{} is not laid out as a product (MMA_C)", r.name.text),
                  "no Reshape here");
  states_[v].layout = Layout::factor;
  steps.push_back({.kind = Step::Kind::reshape, .out = v, .a = v, .at = at_->at});
}

void Examiner::wait(const Wait& w, std::vector<Step>& steps) {
  const int v = find(w.name.text, Memory::shared);
  if (v < 0 || !states_[v].written)
    return report("undefined", w.name.at, fmt::format("nothing copies {} to shared", w.name.text),
                  fmt::format("Copy {} from global to shared", w.name.text));
  if (!states_[v].loaded)
    return report("undefined", w.name.at,
                  fmt::format("no Copy brings {} from global memory", w.name.text), "no Wait here",
                  removed(*at_));
  if (states_[v].awaited)
    return report("twice", at_->at, fmt::format("a second Wait for {}", w.name.text),
                  "one Wait for each Copy", removed(*at_));
  states_[v].awaited = true;
  states_[v].arriving = false;
  steps.push_back({.kind = Step::Kind::wait, .a = v, .at = at_->at});
}

void Examiner::report(std::string code, Span at, std::string reason, std::string right,
                      std::optional<Edit> edit) {
  if (std::ssize(result_.faults) == kMostFaults) return;
  result_.faults.push_back(
      {std::move(code), at.begin, at.end, std::move(reason), std::move(right), std::move(edit)});
}

Edit Examiner::line_before(const Statement& statement, const std::string& line) const {
  return {statement.at.begin, statement.at.begin, line + "\n"};
}

Edit Examiner::header_line(const std::string& line) const {
  int64_t at = -1;
  for (const Statement& s : program_.statements) {
    if (!in_header(s)) break;
    at = s.at.end;
  }
  if (at < 0) return {0, 0, line + "\n"};
  const size_t newline = text_.find('\n', at);
  at = newline == std::string_view::npos ? std::ssize(text_) : static_cast<int64_t>(newline);
  return {at, at, "\n" + line};
}

Edit Examiner::replaced(const Statement& statement, const std::string& line) const {
  return {statement.at.begin, statement.at.end, line};
}

Edit Examiner::removed(const Statement& statement) const {
  constexpr const char* kBlanks = " \t\r";
  const size_t before = text_.substr(0, statement.at.begin).find_last_not_of(kBlanks);
  const size_t behind = std::min(text_.find_first_not_of(kBlanks, statement.at.end), text_.size());
  const std::string_view rest = text_.substr(behind);
  const bool alone = before != std::string_view::npos && text_[before] == '\n' &&
                     (rest.empty() || rest.front() == '\n' || rest.starts_with("//"));
  if (!alone) return {statement.at.begin, statement.at.end, ""};
  const size_t end = std::min(text_.find('\n', behind), text_.size());
  return {static_cast<int64_t>(before), static_cast<int64_t>(end), ""};
}

std::string hash_of(const Program& program) {
  Program bare = program;
  const auto strip = [](auto&& self, std::vector<Statement>& statements) -> void {
    for (Statement& s : statements) {
      s.comments.clear();
      s.comment.clear();
      s.apart = false;
      if (Loop* loop = std::get_if<Loop>(&s.node)) {
        loop->comments.clear();
        self(self, loop->body);
      }
    }
  };
  strip(strip, bare.statements);
  bare.comments.clear();
  return sha256(to_string(bare)).substr(0, 16);
}

Examined examine(std::string_view text, const CheckOptions& options) {
  if (!options.target.empty()) find_target(options.target);  // whatever the text is
  Parsed parsed = parse(text);
  if (parsed.fault) {
    Examined result;
    result.faults.push_back(std::move(*parsed.fault));
    return result;
  }
  Examined result = Examiner(text, parsed.program, options).run();
  result.program = std::move(parsed.program);
  return result;
}

std::vector<Diagnostic> check(std::string_view text, const CheckOptions& options) {
  return examine(text, options).faults;
}

std::string fix(std::string_view text, const CheckOptions& options) {
  constexpr int kMostRounds = 64;  // one statement may need several edits, one after another
  std::string fixed(text);
  for (int round = 0; round < kMostRounds; ++round) {
    std::string next = apply_edits(fixed, check(fixed, options));
    if (next == fixed) break;
    fixed = std::move(next);
  }
  return fixed;
}

}  // namespace verbatim::tl
