#include "tl/statements.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iterator>

#include "tl/parser.h"

namespace verbatim::tl {

void Statements::quote(Span at, const char* remark) { line("// {}{}", text_at(at), remark); }

void Statements::parameters() {
  line("using Element = {};  // param dtype = {}", element(), to_string(k_.dtype));
  const std::pair<const char*, int64_t> parameters[] = {
      {"HeadDim", k_.head_dim}, {"HeadDimV", k_.head_dim_v}, {"BM", k_.tile.q},
      {"BN", k_.tile.kv},       {"stages", k_.stages},       {"warps", k_.warps}};
  for (const auto& [parameter, value] : parameters)
    line("constexpr int k{}{} = {};  // param {} = {}",
         static_cast<char>(std::toupper(parameter[0])), parameter + 1, value, parameter, value);
}

void Statements::registration(const char* place, int arch, const std::string& arithmetic) {
  const char* what = by_index() ? "Selected" : "";
  line("const verbatim::cuda::{}Library verbatim_{}{{", what, by_index() ? "selected" : "library");
  const auto of = [&](const char* name) { return fmt::format("{}::{}", place, name); };
  std::vector<std::pair<const char*, std::string>> members{
      {"version", fmt::format("verbatim::cuda::k{}Version", by_index() ? "Selected" : "Library")},
      {"name", fmt::format("\"tl.{}.{}\"", k_.target, by_index() ? "selected" : pass())},
      {"arithmetic", fmt::format("\"{}\"", arithmetic)},
      {"mask", fmt::format("\"{}\"", k_.mask)},
      {"index", fmt::format("\"{}\"", k_.index)},
      {"by_query", k_.by_query ? "true" : "false"},
      {"arch", fmt::to_string(arch)},
      {"pass", fmt::format("verbatim::Pass::{}", pass())},
      {"dtype", fmt::format("verbatim::Dtype::{}", to_string(k_.dtype))},
      {"head_dim", of("kHeadDim")},
      {"head_dim_v", of("kHeadDimV")},
      {"tile", fmt::format("{{{}, {}}}", of("kBM"), of("kBN"))},
      {"shared_bytes", fmt::format("sizeof({})", of("Shared"))},
      {"residents", of("residents")},
      {"workspace_bytes", backward() ? of("workspace_bytes") : "nullptr"},
      {"forward", backward() ? "nullptr" : of("launch")},
      {"backward", backward() ? of("launch") : "nullptr"}};
  constexpr std::array kOfPlans{"pass", "residents", "workspace_bytes", "backward"};
  constexpr std::array kOfLists{"index", "by_query"};
  std::erase_if(members, [&](const auto& m) {
    const auto among = [&](const auto& names) {
      return std::ranges::find(names, std::string_view(m.first)) != names.end();
    };
    return by_index() ? among(kOfPlans) : among(kOfLists);
  });
  for (const auto& [member, value] : members) line("    .{} = {},", member, value);
  line("}};");
}

std::vector<const Step*> Statements::loads() const {
  std::vector<const Step*> all;
  for (const std::vector<Step>* steps : {&k_.before, &k_.visit})
    for (const Step& step : *steps)
      if (step.kind == Step::Kind::load && step.tensor->columns) all.push_back(&step);
  return all;
}

std::vector<const Step*> Statements::first_loads() const {
  std::vector<const Step*> all;
  for (const Step* load : loads())
    if (std::ranges::find(all, load->tensor, &Step::tensor) == all.end()) all.push_back(load);
  return all;
}

void Statements::define_maps() {
  std::string maps;
  for (const Step* load : first_loads()) maps += (maps.empty() ? "" : ", ") + member(*load->tensor);
  line("/// What tiles are loaded by.");
  line("struct Maps {{");
  line("  CUtensorMap {};", maps);
  line("}};");
  blank();
}

void Statements::make_maps() {
  for (const Step* load : first_loads()) {
    const std::string whose = load->tensor->queries ? "q" : "kv";
    const bool of_lists = by_index() && load->tensor->queries;
    line("  if (status == cudaSuccess)");
    line("    status = make_map<Element>(maps.{}, {}, p.sizes, {}, {},", member(*load->tensor),
         reference(*load->tensor), of_lists ? "p.q_rows" : "p.sizes." + whose + "_len",
         of_lists ? "p.q_heads" : "p.sizes." + whose + "_heads");
    line("                               {}, {});", columns(var(load->out)), rows(var(load->out)));
  }
  line("  if (status != cudaSuccess) return status;");
}

void Statements::define_copies() {
  for (const Step& step : k_.visit)
    if (is_staged(step)) define_copy(step);
}

Statements::Source Statements::source(const Tensor& tensor) const {
  const std::string ref = reference(tensor), h = tensor.queries ? "q_head" : "kv_head";
  const bool kept = tensor.kept(k_.pass);
  const char* place = kept ? "at" : "next";
  const char* whose = kept || !tensor.queries ? "at" : "next";
  return {fmt::format("{}.at<const Element>(at.b, {}.at, {}.{})", ref, place, whose, h),
          ref + ".row", fmt::format("{}.used", place)};
}
std::string Statements::reference(const Tensor& tensor) {
  std::string name;
  for (const char c : std::string_view(tensor.name)) name += static_cast<char>(std::tolower(c));
  return "p." + (name == "do" ? "dout" : name);
}

void Statements::define_copy(const Step& step) {
  quote(step.at);
  line("const auto copy_{} = [&](int ahead) {{", var(step.out).name);
  const Source from = source(*step.tensor);
  line("  if (const Visit next = visits.at(ahead); next.exists())");
  if (by_warpgroups()) {
    indent_ += 4;
    copy_by_map(step, "visits.buffer(ahead)");
    indent_ -= 4;
    line("}};");
    return blank();
  }
  line("    copy_in<Gpu, kThreads>(shared.s_{}[visits.buffer(ahead)],", var(step.out).name);
  line("                           {}, {},", from.at, from.stride);
  line("                           {});", from.used);
  if (background()) line("  cp_async_fence();");
  line("}};");
  blank();
}

void Statements::copy_by_map(const Step& step, const std::string& buffer) {
  const Tensor& tensor = *step.tensor;
  const bool kept = tensor.kept(k_.pass);
  const std::string& tile = var(step.out).name;
  const bool one = buffer.empty();
  line("copy_in(shared.s_{0}{1}, shared.full[of_{0}{2}], maps.{3},", tile,
       one ? "" : "[" + buffer + "]", one ? "" : " + " + buffer, member(tensor));
  line("        {}.at, {}.{}, at.b);", kept ? "at" : "next",
       kept || !tensor.queries ? "at" : "next", tensor.queries ? "q_head" : "kv_head");
}

void Statements::start_copies(const std::vector<Copies::Refill>& refills) {
  for (const Copies::Refill& refill : refills)
    line("copy_{}({});", var(refill.tile).name, refill.ahead);
}

void Statements::loop() {
  for (const Statement& s : program_.statements)
    if (std::holds_alternative<Loop>(s.node)) quote(s.at);
  line("for (; visits.any(); visits.advance()) {{");
  indent_ += 2;
  if (const auto refills = copies_.at_start(); !refills.empty()) {
    line("__syncthreads();  // nobody reads what these tiles held before");
    start_copies(refills);
    blank();
  }
  emit(k_.visit, false);
  out_.pop_back();
  indent_ -= 2;
  line("}}");
  blank();
}

void Statements::emit(const std::vector<Step>& steps, bool first) {
  const auto last_load = std::find_if(steps.rbegin(), steps.rend(), [](const Step& s) {
                           return s.kind == Step::Kind::load;
                         }).base();
  for (auto step = steps.begin(); step != steps.end(); ++step) {
    emit(*step);
    if (first && std::next(step) == last_load) {
      start_copies(copies_.first());
      blank();
    }
  }
  if (first && last_load == steps.begin()) {
    start_copies(copies_.first());
    blank();
  }
}

void Statements::emit(const Step& step) {
  const bool staged = is_staged(step);
  if (&step == last_product_) {
    line("visits.look_ahead();  // while the last product is made");
    blank();
  }
  if (&step == first_of(k_.after, Step::Kind::reduce)) {
    line("begin_keys(p, at);  // where other chains share the tile");
    blank();
  }
  quote(step.at, staged ? ": started ahead" : "");
  if (rounds(step)) return;  // the Reshape's code, below, does both
  switch (step.kind) {
    case Step::Kind::load:
      if (!staged) step.tensor->columns ? load(step) : load_numbers(step);
      break;
    case Step::Kind::wait:
      wait(step);
      break;
    case Step::Kind::compute:
      compute(step);
      break;
    case Step::Kind::reshape:
      reshape(step);
      break;
    case Step::Kind::store:
      store(step);
      break;
    case Step::Kind::move:
      move(step);
      break;
    case Step::Kind::reduce:
      reduce(step);
      break;
  }
  blank();
}

void Statements::load(const Step& step) {
  if (by_warpgroups()) return copy_by_map(step, "");
  const Source from = source(*step.tensor);
  line("copy_in<Gpu, kThreads>({}, {}, {},", name(step.out), from.at, from.stride);
  line("                       {});", from.used);
  if (background()) line("cp_async_fence();");
}

void Statements::load_numbers(const Step& step) {
  const bool lse = *step.tensor->name == 'L';
  line("{{");
  line("  const Visit now = visits.at(0);");
  line("  const int64_t first = p.sizes.row_index(at.b, now.q_head, now.at);");
  line("  copy_in<{}>({}, {}, {} + first, now.rows, {});", rows(var(step.out)), mma(var(step.out)),
       name(step.out), lse ? "p.lse" : "delta_of(p)", lse ? "-INFINITY" : "0");
  line("}}");
}

/// Every Wait is a barrier; between the last reader of a tile and what writes it next, and
/// between that and its readers, there must be one.
void Statements::move(const Step& step) {
  const size_t here = static_cast<size_t>(&step - k_.visit.data()), count = k_.visit.size();
  const auto moves = [&](size_t i) { return k_.visit[i % count].kind == Step::Kind::move; };
  bool waited = false;
  for (size_t back = 1; back < count; ++back) {
    const Step& before = k_.visit[(here + count - back) % count];
    waited |= before.kind == Step::Kind::wait;
    if (!waited && before.kind == Step::Kind::compute &&
        (before.a == step.out || before.b == step.out)) {
      line("__syncthreads();");
      break;
    }
  }
  line("put({}, {}, {});", mma(var(step.a)), name(step.a), name(step.out));
  if (!moves(here + 1)) line("__syncthreads();");
}

void Statements::reduce(const Step& step) {
  const Variable& v = var(step.a);
  const std::string scale = step.by_scale ? "p.scalars.scale"
                            : step.number ? number(*step.number)
                                          : "1";
  if (!step.tensor->kept(k_.pass))
    return line("add_rows<{}, Element>({}, {}, p, at, visits.at(0), {});", extents(v), mma(v),
                name(step.a), scale);
  line("add_keys<{}, Element>({}, {}, p, at, {}, {});", extents(v), mma(v), name(step.a),
       of_v(step), scale);
  if (&step == &k_.after.back()) line("end_keys(p, at);");
}
bool Statements::of_v(const Step& reduce) { return std::string_view(reduce.tensor->name) == "dV"; }

void Statements::wait(const Step& step) {
  const Variable& tile = var(step.a);
  const char* whose = tile.staged ? "visits.at(0)" : "at";
  if (by_warpgroups()) {
    line("await({}, shared.full, phases, of_{}{},", name(step.a), tile.name,
         tile.staged ? " + visits.buffer(0)" : "");
    line("      {}.used);", whose);
  } else if (background()) {
    line("cp_async_wait<{}>();", copies_.pending(step));
  }
  if (const Step* careful = product_by(step.a)) {
    line("// In a cut tile a zero of {} may meet a NaN or an infinity that it does not see.",
         var(careful->a).name);
    line("const bool careful_{} = __syncthreads_or(", var(step.a).name);
    const char* cut = tile.staged ? "visits.at(0).is_cut() && " : "";
    if (by_warpgroups())
      line("    {}nonfinite({}, {}.used));", cut, name(step.a), whose);
    else
      line("    {}nonfinite<Gpu, kThreads>({}));", cut, name(step.a));
  } else {
    line("__syncthreads();");
  }
  start_copies(copies_.behind(step));
}

const Step* Statements::softmax_of(const Step& reshape) const {
  const auto found = std::ranges::adjacent_find(k_.visit, [&](const Step& step, const Step& next) {
    return &next == &reshape && step.kind == Step::Kind::compute &&
           step.operation == Operation::softmax && step.c >= 0 && step.out == next.a;
  });
  return e4m3() || reshape.kind != Step::Kind::reshape || found == k_.visit.end() ? nullptr
                                                                                  : &*found;
}

bool Statements::rounds(const Step& step) const {
  return std::ranges::any_of(k_.visit, [&](const Step& s) { return softmax_of(s) == &step; });
}

std::string Statements::rescaled(const Step& softmax) const {
  std::string names;
  for (const int v : softmax.rescaled) names += ", " + name(v);
  return names;
}

void Statements::reshape(const Step& step) {
  const std::string& tile = var(step.a).name;
  if (e4m3())
    return line("const auto f_{} = factor_of_e4m3(mma, {}, visits.at(0).is_cut());", tile,
                name(step.a));
  const Step* softmax = softmax_of(step);
  if (!softmax) return line("const auto f_{} = factor_of<Element>(mma, {});", tile, name(step.a));
  line("const auto f_{} = factor_of_weights<Element>(mma, {}, {}, {}, unit{});", tile,
       name(softmax->a), name(softmax->b), name(softmax->c), rescaled(*softmax));
}

void Statements::compute(const Step& step) {
  switch (step.operation) {
    case Operation::gemm:
      return gemm(step);
    case Operation::fill:
      line("fill({}, {});", name(step.out), number(*step.number));
      for (const Step& sum : k_.after)
        if (sum.kind == Step::Kind::reduce && sum.a == step.out)
          line("continue_keys<{}, Element>({}, {}, p, at, {});", extents(var(sum.a)),
               mma(var(sum.a)), name(sum.a), of_v(sum));
      return;
    case Operation::mask:
      return hide(step.out, "");
    case Operation::softmax:
      if (step.out != step.a) line("copy({}, {});", name(step.a), name(step.out));
      if (step.c < 0) {
        line("probabilities({}, {}, unit);", name(step.out), name(step.b));
        return hide(step.out, ", 0.0f");  // a row may have a NaN for its LSE
      }
      return line("softmax({}, {}, {}, unit{});", name(step.out), name(step.b), name(step.c),
                  rescaled(step));
    case Operation::logsumexp:
      return line("logsumexp({}, {}, unit, {});", name(step.a), name(step.b), name(step.out));
    default:
      return elementwise(step);
  }
}

/// `value` where pairs are hidden; -inf if it says nothing.
void Statements::hide(int tile, const char* value) {
  if (by_index()) {
    line("if (const Visit now = visits.at(0); now.is_cut() || now.rows < kBN)");
    return line("  hide<kBM, kBN>({}, {}, at, now);", mma(var(tile)), name(tile));
  }
  const auto [q, k] = backward() ? std::pair("now", "at") : std::pair("at", "now");
  line("if (const Visit now = visits.at(0); now.is_cut() || {}.rows < kBN)", k);
  line("  hide<kBM, kBN>({}, {}, *at.order, *now.run,", mma(var(tile)), name(tile));
  line("                 {{{0}.row, {1}.row, {0}.rows, {1}.rows}}{2});", q, k, value);
}

void Statements::gemm(const Step& step) {
  const Variable& out = var(step.out);
  const bool from_registers = var(step.a).memory == Memory::registers;
  const std::string a =
      from_registers
          ? "f_" + var(step.a).name
          : fmt::format("{}({})", step.a_transposed ? "AcrossK" : "AlongK", name(step.a));
  const std::string b =
      is_result(out)
          ? name(step.b)
          : fmt::format("{}({})", step.b_transposed ? "AlongK" : "AcrossK", name(step.b));
  if (!step.accumulate) line("clear({});", name(step.out));
  const std::string product = fmt::format("({}, {}, {},", mma(out), name(step.out), a);
  const char* kind = is_result(out) ? "_e4m3" : "";
  if (!is_masked(step.a)) return line("multiply{}{} {});", kind, product, b);
  line("if (careful_{}{})", var(step.b).name,
       var(step.b).staged ? "" : " && visits.at(0).is_cut()");
  line("  multiply_carefully<{}>{}", from_registers ? rows(out) : extents(out), product);
  line("      {});", from_registers ? name(step.b) : b);
  line("else");
  line("  multiply{}{}", kind, product);
  line("      {});", b);
}

void Statements::elementwise(const Step& step) {
  const std::string out = name(step.out), a = name(step.a);
  const bool divides = step.operation == Operation::divide;
  const char* sign = step.operation == Operation::add        ? "+"
                     : step.operation == Operation::subtract ? "-"
                                                             : "*";
  if (step.b >= 0) {
    const std::string b = divides ? fmt::format("inverse({})", name(step.b)) : name(step.b);
    line("combine({}, {}, {}, [](float x, float y) {{ return x {} y; }});", out, a, b, sign);
    // What a hidden pair's other factor holds does not count.
    if (step.operation == Operation::multiply && is_masked(step.a) != is_masked(step.b) &&
        var(step.b).shape.size() == 2)
      hide(step.out, ", 0.0f");
    return;
  }
  const std::string b = step.by_scale ? scale() : number(*step.number);
  const std::string what =
      divides ? fmt::format("{0} == 0 ? 0 : x / {0}", b) : fmt::format("x {} {}", sign, b);
  if (&step == fold_) line("if (!folds)");
  line("{}apply({}, {}, [&](float x) {{ return {}; }});", &step == fold_ ? "  " : "", out, a, what);
}

void Statements::store(const Step& step) {
  const Variable& v = var(step.a);
  if (e4m3() && v.shape.size() == 2) {
    line("write_rows<{}>({}, {},", extents(v), mma(v), name(step.a));
    line("    {0}.at<bfloat16_t>(at.b, at.at, at.q_head), {0}.row, at.rows);",
         reference(*step.tensor));
  } else if (v.shape.size() == 2) {
    line("copy_out<kThreads>({}, {}, reinterpret_cast<SharedTile<Element, {}>&>(shared),", mma(v),
         name(step.a), extents(v));
    line("                   {0}.at<Element>(at.b, at.at, at.q_head), {0}.row, at.rows);",
         reference(*step.tensor));
  } else {
    line("copy_out<{}>({}, {}, {}, at.rows{});", rows(v), mma(v), name(step.a), lse_at("at.b"),
         by_index() ? ", p.lse.row" : "");
  }
}

/// Where the LSE of a tile's first row is.
std::string Statements::lse_at(const char* batch) const {
  if (by_index()) return fmt::format("p.lse.at<float>({}, at.at, at.q_head)", batch);
  return fmt::format("p.lse + p.sizes.row_index({}, at.q_head, at.at)", batch);
}

std::string Statements::number(double value) {
  if (std::isinf(value)) return value < 0 ? "-INFINITY" : "INFINITY";
  return fmt::format("{:#}f", value);
}

}  // namespace verbatim::tl
