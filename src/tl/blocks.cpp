// Which block of its tensor a move takes: the chain's own, that of the visit, or that which an
// index tensor names for the visit.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tl/examine.h"
#include "verbatim/error.h"

namespace verbatim::tl {
namespace {

constexpr std::array<std::string_view, 9> kParameters{
    "pass", "target", "dtype", "HeadDim", "HeadDimV", "BM", "BN", "stages", "warps"};

std::string text_of(const Coordinate& c) {
  return c.index.text + (c.inner ? "[" + c.inner->text + "]" : "");
}

}  // namespace

void Examiner::read_index() {
  for (const Statement& s : program_.statements) {
    const Param* p = std::get_if<Param>(&s.node);
    if (!p || !p->value || std::ranges::count(kParameters, p->name.text)) continue;
    if (p->value->text == kIndex || p->value->text == kQueryIndex) check_index(*p);
  }
}

void Examiner::check_index(const Param& param) {
  const Name& name = param.name;
  if (kernel_.pass == Pass::backward)
    return report("index", param.value->at,
                  "without a plan the addends of a backward's sums have no order",
                  "param pass = forward");
  if (find_tensor(name.text))
    return report("index", name.at, fmt::format("{} is a tensor of its own", name.text),
                  "another name");
  if (!kernel_.index.empty() && kernel_.index != name.text)
    return report("index", name.at, fmt::format("{} names the blocks of all visits", kernel_.index),
                  "one index tensor");
  kernel_.index = name.text;
  kernel_.by_query = param.value->text == kQueryIndex;
}

std::string Examiner::block_of(const Tensor& tensor) const {
  const std::string visit = loop_ ? std::get<Loop>(loop_->node).variable.text : std::string("i");
  if (tensor.kept(kernel_.pass) || kernel_.index.empty()) return tensor.block(kernel_.pass, visit);
  return fmt::format("{}[{}]", kernel_.index, visit);
}

void Examiner::check_block(const Move& m, const Tensor& tensor) {
  if (!tensor.kept(kernel_.pass) && !loop_)
    report("loop", at_->at, fmt::format("the tile of {} changes with every visit", tensor.name),
           "the statement inside the loop");
  if (options_.sketch && !m.coordinate && !m.shape) return;
  if (!options_.sketch && globals_.insert(tensor.name).second) {
    const std::string line = fmt::format("Allocate {} in global {} with offset {}", tensor.name,
                                         to_string(shape_of(tensor.whole())), tensor.offset());
    report("unallocated", m.name.at, fmt::format("{} has no Allocate in global", tensor.name), line,
           header_line(line));
  }
  if (!m.coordinate || !m.shape) {
    Move right = m;
    right.shape = shape_of(tensor.tile());
    right.coordinate = Coordinate{{"L", {}}, {block_of(tensor), {}}, {}, {}};
    const std::string line = to_string(Statement{right, {}, false, {}, ""});
    return report("incomplete", at_->at,
                  fmt::format("nothing says which block of {} is meant", tensor.name), line,
                  replaced(*at_, line));
  }
  check_coordinate(*m.coordinate, tensor);
  if (!equal(names_of(*m.shape), tensor.tile())) {
    const std::string right = to_string(shape_of(tensor.tile()));
    report("shape", m.shape->at, fmt::format("a block of {} is {}", tensor.name, right), right,
           Edit{m.shape->at.begin, m.shape->at.end, right});
  }
}

void Examiner::check_coordinate(const Coordinate& c, const Tensor& tensor) {
  if (c.axis.text != "L")
    report("coordinate", c.axis.at, "blocks are counted along the length", "L",
           Edit{c.axis.at.begin, c.axis.at.end, "L"});
  const bool kept = tensor.kept(kernel_.pass);
  if (c.inner && !kept && kernel_.pass == Pass::forward && kernel_.index.empty()) {
    const std::string line = fmt::format("param {} = {}", c.index.text, kIndex);
    report("index", c.index.at,
           fmt::format("nothing says that {} is an index tensor", c.index.text), line,
           header_line(line));
    kernel_.index = c.index.text;  // no more about it
  }
  const std::string block = block_of(tensor);
  if (text_of(c) == block) return;
  report("coordinate", c.index.at,
         fmt::format("the block of {} is {}", tensor.name,
                     kept                    ? "the chain's own"
                     : kernel_.index.empty() ? "that of the visit"
                                             : "what " + kernel_.index + " names for the visit"),
         block, Edit{c.at.begin, c.at.end, fmt::format("coordinate [L = {}]", block)});
}

void refuse_index(const Kernel& kernel, const char* operation) {
  if (kernel.index.empty()) return;
  throw Error(
      ErrorCode::unsupported, operation,
      "an index tensor names the blocks of the program: it runs without a plan",
      {"kernel", fmt::format("param {} = {}", kernel.index, kernel.by_query ? kQueryIndex : kIndex),
       "a program whose blocks the plan names", "verbatim run --device cpu --pass forward"});
}

}  // namespace verbatim::tl
