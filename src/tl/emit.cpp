// From TL code to CUDA C++: every block of the kernel under its line of TL, in the words of
// src/backend/cuda/device/tiles.cuh. Names of a program become names behind a prefix (s_ in shared
// memory, r_ in registers); nothing else of its text gets into the code.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "contract/contract.h"
#include "core/sha256.h"
#include "tl/copies.h"
#include "tl/kernel.h"
#include "tl/parser.h"
#include "verbatim/error.h"

namespace verbatim::tl {
namespace {

constexpr const char* kOperation = "tl.emit";
constexpr const char* kVersion = "emit.2";  // raised with the bits of what is written

/// A target that is translated for.
struct Gpu {
  const char* target;
  int arch;              // compute capability: 80
  const char* features;  // in tiles.cuh
};
constexpr std::array kGpus{Gpu{"a100", 80, "Sm80"}};

const Gpu& gpu_of(const std::string& target) {
  const auto found =
      std::ranges::find_if(kGpus, [&](const Gpu& gpu) { return target == gpu.target; });
  if (found != kGpus.end()) return *found;
  std::string known;
  for (const Gpu& gpu : kGpus) known += (known.empty() ? "" : ", ") + std::string(gpu.target);
  throw Error(ErrorCode::unsupported, kOperation, "there is no translation for this target yet",
              {"target", target, known, kGpus.front().target});
}

class Emitter {
 public:
  Emitter(const Examined& found, std::string arithmetic)
      : program_(found.program),
        k_(found.kernel),
        gpu_(gpu_of(k_.target)),
        arithmetic_(std::move(arithmetic)),
        copies_(k_) {}

  std::string run() {
    refuse_what_is_missing();
    head();
    shared();
    chain();
    entry();
    return std::move(out_);
  }

 private:
  // ---- Text.

  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    const std::string text = fmt::format(format, std::forward<Args>(args)...);
    if (!text.empty()) out_.append(indent_, ' ').append(text);
    out_ += '\n';
  }
  void blank() { out_ += '\n'; }
  /// The line of TL that what follows stands for.
  void quote(Span at, const char* remark = "") {
    line("// {}{}", text_at(program_.statements, at), remark);
  }
  static std::string text_at(const std::vector<Statement>& statements, Span at) {
    for (const Statement& s : statements) {
      if (s.at.begin == at.begin) return to_string(s);
      if (const Loop* loop = std::get_if<Loop>(&s.node))
        if (std::string text = text_at(loop->body, at); !text.empty()) return text;
    }
    return "";
  }

  const Variable& var(int v) const { return k_.variables[static_cast<size_t>(v)]; }
  std::string name(int v) const {
    const Variable& variable = var(v);
    if (variable.memory != Memory::shared) return "r_" + variable.name;
    return "shared.s_" + variable.name +
           (variable.staged ? fmt::format("[visits.buffer({})]", ahead_) : "");
  }
  /// An extent as the constant of its parameter.
  static std::string extent(const std::string& of, int64_t value) {
    for (const char* known : {"BM", "BN", "HeadDim", "HeadDimV"})
      if (of == known) return "k" + of;
    return fmt::to_string(value);
  }
  std::string rows(const Variable& v) const { return extent(v.shape[0], v.rows); }
  std::string cols(const Variable& v) const { return extent(v.shape[1], v.cols); }
  std::string extents(const Variable& v) const {
    return v.shape.size() == 2 ? rows(v) + ", " + cols(v) : rows(v);
  }

  // ---- What is not translated yet.

  [[noreturn]] void refuse(Span at, const char* what, const char* nearest) const {
    throw Error(ErrorCode::unsupported, kOperation,
                fmt::format("{} is not translated for {} yet", what, k_.target),
                {"program", text_at(program_.statements, at), nearest, nearest});
  }

  void refuse_what_is_missing() const {
    for (const Step& step : k_.after)
      if (step.kind == Step::Kind::store &&
          var(step.a).rows * var(step.a).cols * 2 > shared_bytes(k_) - kPlaceBytes)
        refuse(step.at, "a result that is larger than all tiles in shared memory",
               "larger tiles of keys");
    if (k_.pass == Pass::backward)
      throw Error(ErrorCode::unsupported, kOperation,
                  fmt::format("a backward is not translated for {} yet", k_.target),
                  {"param pass", "backward", "forward", "forward"});
    for (const Variable& v : k_.variables)
      if (v.rows % 16 != 0 || (v.shape.size() == 2 && v.cols % 16 != 0))
        refuse(v.at, "a tile whose sides are no multiples of 16", "multiples of 16");
    if (const int tile = copies_.without_room(); tile >= 0)
      refuse(var(tile).at, "a tile with one buffer that is read behind all Waits", "stages = 2");
    for (const std::vector<Step>* steps : {&k_.before, &k_.visit, &k_.after})
      for (const Step& step : *steps) {
        if (step.kind == Step::Kind::move)
          refuse(step.at, "a copy between shared memory and registers", "Reshape");
        const bool gemm = step.kind == Step::Kind::compute && step.operation == Operation::gemm;
        if (gemm && step.a_transposed)
          refuse(step.at, "a first factor that is transposed", "one that is not");
        if (step.kind == Step::Kind::compute && step.operation == Operation::softmax && step.c < 0)
          refuse(step.at, "a softmax from LSE", "Compute Softmax S with m and l");
        if (step.kind == Step::Kind::load && !step.tensor->columns)
          refuse(step.at, "a copy to registers", "a tile");
      }
  }

  // ---- Parts of the file.

  void head() {
    const bool bf16 = k_.dtype == Dtype::bf16;
    line("// The forward of {} for {} (sm_{}), as `verbatim tl emit`", arithmetic_, k_.target,
         gpu_.arch);
    line(
        "// writes it: every block stands under its line of TL. A chain keeps a query tile, `at`, "
        "and");
    line("// visits KV tiles in the plan's order; `visits` knows them.");
    for (const char* header : {"device/chains", "device/hand_off", "device/tiles", "library"})
      line("#include \"backend/cuda/{}.cuh\"", header);
    blank();
    line("namespace verbatim::cuda::tiles {{");
    line("namespace {{");
    blank();
    line("using Gpu = {};", gpu_.features);
    line("using Element = {};  // param dtype = {}", bf16 ? "bfloat16_t" : "half_t",
         to_string(k_.dtype));
    const std::pair<const char*, int64_t> parameters[] = {
        {"HeadDim", k_.head_dim}, {"HeadDimV", k_.head_dim_v}, {"BM", k_.tile.q},
        {"BN", k_.tile.kv},       {"stages", k_.stages},       {"warps", k_.warps}};
    for (const auto& [parameter, value] : parameters)
      line("constexpr int {} = {};  // param {} = {}", constant(parameter), value, parameter,
           value);
    line("constexpr int kThreads = 32 * kWarps;");
    line("using Mma = Product<Gpu, Element, kWarps>;");
    blank();
  }
  static std::string constant(std::string parameter) {
    parameter[0] = static_cast<char>(std::toupper(parameter[0]));
    return "k" + parameter;
  }

  void shared() {
    line("struct Shared {{");
    indent_ += 2;
    for (const Variable& v : k_.variables) {
      if (v.memory != Memory::shared) continue;
      quote(v.at);
      line("SharedTile<Element, {}> s_{}{};", extents(v), v.name, v.staged ? "[kStages]" : "");
    }
    line("Place at;");
    line("int32_t ended;");
    indent_ -= 2;
    line("}};");
    blank();
  }

  void chain() {
    line("__device__ __forceinline__ void do_chain(const ForwardParams& p, Shared& shared) {{");
    indent_ = 2;
    line("const Place& at = shared.at;");
    line("Visits<Pass::forward, kStages> visits(at);");
    find_fold();
    if (fold_) {
      line("// A positive scale is multiplied with in the exponent.");
      line("const bool folds = p.scalars.scale > 0;");
      line("const float unit = folds ? p.scalars.scale_log2 : kLog2e;");
    } else {
      line("constexpr float unit = kLog2e;");
    }
    line("const Mma mma;");
    blank();
    allocate_registers();
    for (const Step& step : k_.visit)
      if (step.kind == Step::Kind::load) define_copy(step);
    emit(k_.before, true);
    loop();
    for (const int v : partial_sums()) {
      line("complete({});  // every lane has summed the columns that it holds", name(v));
      blank();
    }
    emit(k_.after, false);
    if (out_.ends_with("\n\n")) out_.pop_back();
    indent_ = 0;
    line("}}");
    blank();
  }

  void allocate_registers() {
    for (const Variable& v : k_.variables) {
      if (v.memory != Memory::registers) continue;
      quote(v.at);
      line("auto r_{} = {}<{}>(mma);", v.name, v.shape.size() == 2 ? "registers" : "numbers",
           extents(v));
    }
    blank();
  }

  void entry() {
    line(
        "__global__ __launch_bounds__(kThreads) void kernel(const __grid_constant__ ForwardParams "
        "p) {{");
    line("  extern __shared__ __align__(128) unsigned char memory[];");
    line("  auto& shared = *reinterpret_cast<Shared*>(memory);");
    line("  for (start(shared.at); next_chain<Pass::forward>(shared.at, p);) do_chain(p, shared);");
    line(
        "  if (ends_given_up(p.hand_off, shared.ended)) destroy_results(p, threadIdx.x, "
        "kThreads);");
    line("}}");
    blank();
    line("cudaError_t residents(int* count) {{");
    line("  return residents_of(kernel, kThreads, sizeof(Shared), count);");
    line("}}");
    line("cudaError_t launch(const ForwardParams& p, int64_t workers, bool together,");
    line("                   cudaStream_t stream) {{");
    line("  return launch_blocks(kernel, workers, kThreads, sizeof(Shared), together, stream, p);");
    line("}}");
    blank();
    line("}}  // namespace");
    line("}}  // namespace verbatim::cuda::tiles");
    blank();
    line("const verbatim::cuda::Library verbatim_library{{");
    const std::pair<const char*, std::string> members[] = {
        {"version", "verbatim::cuda::kLibraryVersion"},
        {"name", fmt::format("\"tl.{}.forward\"", k_.target)},
        {"arithmetic", fmt::format("\"{}\"", arithmetic_)},
        {"mask", fmt::format("\"{}\"", k_.mask)},
        {"arch", fmt::to_string(gpu_.arch)},
        {"pass", "verbatim::Pass::forward"},
        {"dtype", fmt::format("verbatim::Dtype::{}", to_string(k_.dtype))},
        {"head_dim", "verbatim::cuda::tiles::kHeadDim"},
        {"head_dim_v", "verbatim::cuda::tiles::kHeadDimV"},
        {"tile", "{verbatim::cuda::tiles::kBM, verbatim::cuda::tiles::kBN}"},
        {"shared_bytes", "sizeof(verbatim::cuda::tiles::Shared)"},
        {"residents", "verbatim::cuda::tiles::residents"},
        {"forward", "verbatim::cuda::tiles::launch"},
        {"backward", "nullptr"}};
    for (const auto& [member, value] : members) line("    .{} = {},", member, value);
    line("}};");
  }

  // ---- Copies to shared memory.

  /// The first element that a Copy reads, its row stride, and how many rows count.
  struct Source {
    std::string at, stride, used;
  };
  Source source(const Tensor& tensor) const {
    const std::string ref = reference(tensor), h = tensor.queries ? "q_head" : "kv_head";
    const bool kept = tensor.kept(k_.pass);
    const char* place = kept ? "at" : "next";
    return {fmt::format("{}.at<const Element>(at.b, {}.at, at.{})", ref, place, h), ref + ".row",
            fmt::format("{}.used", place)};
  }
  static std::string reference(const Tensor& tensor) {
    return "p." + std::string(1, static_cast<char>(std::tolower(tensor.name[0])));
  }

  void define_copy(const Step& step) {
    quote(step.at);
    line("const auto copy_{} = [&](int ahead) {{", var(step.out).name);
    const Source from = source(*step.tensor);
    line("  if (const Visit next = visits.at(ahead); next.exists())");
    line("    copy_in<Gpu, kThreads>(shared.s_{}[visits.buffer(ahead)],", var(step.out).name);
    line("                           {}, {},", from.at, from.stride);
    line("                           {});", from.used);
    line("  cp_async_fence();");
    line("}};");
    blank();
  }

  void start_copies(const std::vector<Copies::Refill>& refills) {
    for (const Copies::Refill& refill : refills)
      line("copy_{}({});", var(refill.tile).name, refill.ahead);
  }

  // ---- Statements.

  void loop() {
    for (const Statement& s : program_.statements)
      if (std::holds_alternative<Loop>(s.node)) quote(s.at);
    line("for (; visits.any(); visits.advance()) {{");
    indent_ += 2;
    emit(k_.visit, false);
    out_.pop_back();
    indent_ -= 2;
    line("}}");
    blank();
  }

  /// `first`: in front of the loop, whose first copies follow the last of these.
  void emit(const std::vector<Step>& steps, bool first) {
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

  void emit(const Step& step) {
    const bool staged = step.kind == Step::Kind::load && var(step.out).staged;
    quote(step.at, staged ? ": started ahead" : "");
    switch (step.kind) {
      case Step::Kind::load:
        if (!staged) load(step);
        break;
      case Step::Kind::wait:
        wait(step);
        break;
      case Step::Kind::compute:
        compute(step);
        break;
      case Step::Kind::reshape:
        line("const auto f_{} = factor_of<Element>(mma, {});", var(step.a).name, name(step.a));
        break;
      case Step::Kind::store:
        store(step);
        break;
      default:
        refuse(step.at, "this statement", "another");
    }
    blank();
  }

  void load(const Step& step) {
    const Source from = source(*step.tensor);
    line("copy_in<Gpu, kThreads>({}, {}, {},", name(step.out), from.at, from.stride);
    line("                       {});", from.used);
    line("cp_async_fence();");
  }

  void wait(const Step& step) {
    line("cp_async_wait<{}>();", copies_.pending(step));
    if (const Step* careful = product_by(step.a)) {
      line("// In a cut tile a zero of {} may meet a NaN or an infinity that it does not see.",
           var(careful->a).name);
      line("const bool careful_{} = __syncthreads_or(", var(step.a).name);
      line("    visits.at(0).is_cut() && nonfinite<Gpu, kThreads>({}));", name(step.a));
    } else {
      line("__syncthreads();");
    }
    start_copies(copies_.behind(step));
  }

  /// The product of this visit whose second factor is `tile`, and its first in registers.
  const Step* product_by(int tile) const {
    const auto found = std::ranges::find_if(k_.visit, [&](const Step& s) {
      return s.kind == Step::Kind::compute && s.operation == Operation::gemm && s.b == tile &&
             var(s.a).memory == Memory::registers;
    });
    return found == k_.visit.end() ? nullptr : &*found;
  }

  void compute(const Step& step) {
    switch (step.operation) {
      case Operation::gemm:
        return gemm(step);
      case Operation::fill:
        return line("fill({}, {});", name(step.out), number(*step.number));
      case Operation::mask:
        line("if (const Visit now = visits.at(0); now.is_cut() || now.rows < kBN)");
        line(
            "  hide<kBM, kBN>(mma, {}, *at.order, *now.run, {{at.row, now.row, at.rows, "
            "now.rows}});",
            name(step.out));
        return;
      case Operation::softmax: {
        std::string rescaled;
        for (const int v : step.rescaled) rescaled += ", " + name(v);
        if (step.out != step.a) line("copy({}, {});", name(step.a), name(step.out));
        return line("softmax({}, {}, {}, unit{});", name(step.out), name(step.b), name(step.c),
                    rescaled);
      }
      case Operation::logsumexp:
        return line("logsumexp({}, {}, unit, {});", name(step.a), name(step.b), name(step.out));
      default:
        return elementwise(step);
    }
  }

  void gemm(const Step& step) {
    const bool from_registers = var(step.a).memory == Memory::registers;
    const std::string a =
        from_registers ? "f_" + var(step.a).name : fmt::format("AlongK({})", name(step.a));
    const std::string b =
        fmt::format("{}({})", step.b_transposed ? "AlongK" : "AcrossK", name(step.b));
    if (!step.accumulate) line("clear({});", name(step.out));
    const std::string product = fmt::format("multiply(mma, {}, {}, {});", name(step.out), a, b);
    if (!from_registers) return line("{}", product);
    line("if (careful_{})", var(step.b).name);
    line("  multiply_carefully<{}>(mma, {}, {}, {});", rows(var(step.out)), name(step.out), a,
         name(step.b));
    line("else");
    line("  {}", product);
  }

  void elementwise(const Step& step) {
    const std::string out = name(step.out), a = name(step.a);
    const bool divides = step.operation == Operation::divide;
    const char* sign = step.operation == Operation::add        ? "+"
                       : step.operation == Operation::subtract ? "-"
                                                               : "*";
    if (step.b >= 0) {
      const std::string b = divides ? fmt::format("inverse({})", name(step.b)) : name(step.b);
      return line("combine({}, {}, {}, [](float x, float y) {{ return x {} y; }});", out, a, b,
                  sign);
    }
    const std::string b = step.by_scale ? "p.scalars.scale" : number(*step.number);
    const std::string what =
        divides ? fmt::format("{0} == 0 ? 0 : x / {0}", b) : fmt::format("x {} {}", sign, b);
    if (&step == fold_) line("if (!folds)");
    line("{}apply({}, {}, [&](float x) {{ return {}; }});", &step == fold_ ? "  " : "", out, a,
         what);
  }

  void store(const Step& step) {
    const Variable& v = var(step.a);
    if (v.shape.size() == 2) {
      line("copy_out<kThreads>(mma, {}, reinterpret_cast<SharedTile<Element, {}>&>(shared),",
           name(step.a), extents(v));
      line("                   {0}.at<Element>(at.b, at.at, at.q_head), {0}.row, at.rows);",
           reference(*step.tensor));
    } else {
      line("copy_out<{}>(mma, {}, p.lse + p.sizes.row_index(at.b, at.q_head, at.at), at.rows);",
           rows(v), name(step.a));
    }
  }

  static std::string number(double value) {
    if (std::abs(value) > 1e18) return value < 0 ? "-INFINITY" : "INFINITY";
    return fmt::format("{:#}f", value);
  }

  /// Running sums of online softmaxes, which lanes keep of their own columns.
  std::vector<int> partial_sums() const {
    std::vector<int> sums;
    for (const Step& step : k_.visit)
      if (step.kind == Step::Kind::compute && step.operation == Operation::softmax && step.c >= 0)
        sums.push_back(step.c);
    return sums;
  }

  /// The multiplication of scores by the scale, where an online softmax alone reads them: left to
  /// its exponent.
  void find_fold() {
    const auto is = [](const Step& s, Operation operation) {
      return s.kind == Step::Kind::compute && s.operation == operation;
    };
    for (auto step = k_.visit.begin(); step != k_.visit.end(); ++step) {
      if (!is(*step, Operation::multiply) || !step->by_scale || step->out != step->a) continue;
      auto next = std::next(step);
      if (next != k_.visit.end() && is(*next, Operation::mask) && next->out == step->out) ++next;
      if (next != k_.visit.end() && is(*next, Operation::softmax) && next->c >= 0 &&
          next->a == step->out && next->out == step->out)
        fold_ = &*step;
    }
  }

  const Program& program_;
  const Kernel& k_;
  const Gpu& gpu_;
  std::string arithmetic_;
  Copies copies_;
  const Step* fold_ = nullptr;
  std::string out_;
  size_t indent_ = 0;
  int ahead_ = 0;
};

std::string arithmetic_of(const Examined& found) {
  const std::string hash =
      sha256(fmt::format("{}\n{}\n{}", kVersion, found.kernel.target, hash_of(found.program)));
  return contract::kTl + hash.substr(0, 16);
}

}  // namespace

Emitted emit(std::string_view text, std::string_view file, const CheckOptions& options) {
  Examined found = examine_code(text, file, options, kOperation);
  if (!options.target.empty()) found.kernel.target = options.target;
  const std::string pass = found.kernel.pass == Pass::forward ? "forward" : "backward";
  const std::string arithmetic = arithmetic_of(found);
  return {pass + "_" + found.kernel.target, Emitter(found, arithmetic).run(), arithmetic,
          gpu_of(found.kernel.target).arch};
}

}  // namespace verbatim::tl
