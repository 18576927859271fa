// From TL code to CUDA C++: every block of the kernel under its line of TL, in the words of
// src/backend/cuda/device/tiles.cuh. Names of a program become names behind a prefix (s_ in shared
// memory, r_ in registers); nothing else of its text gets into the code.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <map>

#include "contract/contract.h"
#include "core/sha256.h"
#include "tl/copies.h"
#include "tl/kernel.h"
#include "tl/parser.h"
#include "verbatim/error.h"

namespace verbatim::tl {
namespace {

constexpr const char* kOperation = "tl.emit";
constexpr const char* kVersion = "emit.3";  // raised with the bits of what is written

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
    by_rows_ = has_factor_in_registers();
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
    return "shared.s_" + variable.name + (variable.staged ? "[visits.buffer(0)]" : "");
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

  bool backward() const { return k_.pass == Pass::backward; }
  const char* pass() const { return backward() ? "backward" : "forward"; }
  const char* params() const { return backward() ? "BackwardParams" : "ForwardParams"; }
  bool is_staged(const Step& step) const {
    return step.kind == Step::Kind::load && var(step.out).staged;
  }
  static const Step* first_of(const std::vector<Step>& steps, Step::Kind kind) {
    const auto found = std::ranges::find(steps, kind, &Step::kind);
    return found == steps.end() ? nullptr : &*found;
  }

  // ---- How warps share products.

  /// Warps along the rows of a product, and along its columns.
  struct Split {
    int64_t rows, columns;
  };

  bool has_factor_in_registers() const {
    return std::ranges::any_of(k_.visit, [&](const Step& s) {
      return s.kind == Step::Kind::compute && s.operation == Operation::gemm &&
             var(s.a).memory == Memory::registers;
    });
  }

  /// Of rows x columns: by rows where a product goes on in registers; else what reads least of its
  /// factors.
  Split split_of(const Variable& v) const {
    Split best{k_.warps, 1};
    if (by_rows_) return best;
    int64_t least = std::numeric_limits<int64_t>::max();
    for (int64_t rows = k_.warps; rows > 0; --rows) {
      const int64_t columns = k_.warps / rows;
      if (rows * columns != k_.warps || v.rows % (16 * rows) || v.cols % (16 * columns)) continue;
      const int64_t reads = v.rows / rows + v.cols / columns;
      if (reads < least) least = reads, best = {rows, columns};
    }
    return best;
  }

  /// The name of the product that a tile in registers, or numbers of its rows, belong to.
  std::string mma(const Variable& v) const {
    if (by_rows_) return "mma";
    if (v.shape.size() == 2) return fmt::format("mma_{}_{}", v.shape[0], v.shape[1]);
    for (const Step& step : k_.visit)
      if (step.b >= 0 && &var(step.b) == &v) return mma(var(step.a));
    return "";
  }

  /// Those that there are, by name.
  std::map<std::string, Split> products() const {
    std::map<std::string, Split> all;
    for (const Variable& v : k_.variables)
      if (v.memory == Memory::registers && v.shape.size() == 2) all.emplace(mma(v), split_of(v));
    return all;
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
    for (const Variable& v : k_.variables)
      if (v.rows % 16 != 0 || (v.shape.size() == 2 && v.cols % 16 != 0))
        refuse(v.at, "a tile whose sides are no multiples of 16", "multiples of 16");
    if (const int tile = copies_.without_room(); tile >= 0)
      refuse(var(tile).at, "a tile with one buffer that is read behind all Waits", "stages = 2");
    for (const std::vector<Step>* steps : {&k_.before, &k_.visit, &k_.after})
      for (const Step& step : *steps) {
        const bool gemm = step.kind == Step::Kind::compute && step.operation == Operation::gemm;
        const bool in_registers = gemm && var(step.a).memory == Memory::registers;
        if (step.kind == Step::Kind::move && (steps != &k_.visit || var(step.out).staged))
          refuse(step.at, "a copy to shared memory outside the loop", "one inside");
        if (step.kind == Step::Kind::move && var(step.out).memory != Memory::shared)
          refuse(step.at, "a copy from shared memory to registers", "Compute GEMM");
        if (in_registers && k_.pass == Pass::backward)
          refuse(step.at, "a first factor in registers in a backward", "one in shared memory");
        if (gemm && !in_registers && steps != &k_.visit)
          refuse(step.at, "a product outside the loop", "one inside");
        if (step.kind == Step::Kind::load && !step.tensor->columns && steps != &k_.visit)
          refuse(step.at, "a copy to registers outside the loop", "one inside");
        if (step.kind == Step::Kind::reduce && steps == &k_.visit && step.tensor->kept(k_.pass))
          refuse(step.at, "a sum of the chain's own tile in the loop", "Reduce behind it");
      }
  }

  // ---- Parts of the file.

  void head() {
    const bool bf16 = k_.dtype == Dtype::bf16;
    line("// The {} of {} for {} (sm_{}), as `verbatim tl emit`", pass(), arithmetic_, k_.target,
         gpu_.arch);
    line(
        "// writes it: every block stands under its line of TL. A chain keeps a tile, `at`, and "
        "visits");
    line("// those of the other axis in the plan's order; `visits` knows them.");
    for (const char* header : {"device/chains", "device/hand_off", "device/tiles", "library"})
      line("#include \"backend/cuda/{}.cuh\"", header);
    if (backward())
      for (const char* header : {"device/sums", "prepare"})
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
    line("__device__ __forceinline__ void do_chain(const {}& p, Shared& shared) {{", params());
    indent_ = 2;
    line("const Place& at = shared.at;");
    line("Visits<Pass::{}, kStages> visits(at);", pass());
    find_fold();
    if (fold_) {
      line("// A positive scale is multiplied with in the exponent.");
      line("const bool folds = p.scalars.scale > 0;");
      line("const float unit = folds ? p.scalars.scale_log2 : kLog2e;");
    } else {
      line("constexpr float unit = kLog2e;");
    }
    for (const auto& [mma, split] : products())
      line("const Product<Gpu, Element, {}, {}> {};", split.rows, split.columns, mma);
    blank();
    allocate_registers();
    for (const Step& step : k_.visit)
      if (is_staged(step)) define_copy(step);
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
      line("auto r_{} = {}<{}>({});", v.name, v.shape.size() == 2 ? "registers" : "numbers",
           extents(v), mma(v));
    }
    blank();
  }

  void entry() {
    line("__global__ __launch_bounds__(kThreads) void kernel(");
    line("    const __grid_constant__ {} p) {{", params());
    line("  extern __shared__ __align__(128) unsigned char memory[];");
    line("  auto& shared = *reinterpret_cast<Shared*>(memory);");
    line("  for (start(shared.at); next_chain<Pass::{}>(shared.at, p);) do_chain(p, shared);",
         pass());
    line(
        "  if (ends_given_up(p.hand_off, shared.ended)) destroy_results(p, threadIdx.x, "
        "kThreads);");
    line("}}");
    blank();
    line("cudaError_t residents(int* count) {{");
    line("  return residents_of(kernel, kThreads, sizeof(Shared), count);");
    line("}}");
    if (backward()) {
      line("int64_t workspace_bytes(const Sizes& sizes, bool shared_tiles, bool piece) {{");
      line("  return BackwardWorkspace::of(sizes, shared_tiles, piece).end * int64_t{{4}};");
      line("}}");
    }
    line("cudaError_t launch(const {}& p, const Start& start) {{", params());
    if (backward()) {
      line("  const cudaError_t status =");
      line("      prepare_backward<{}>(p, start.empty_rows, start.stream);",
           k_.dtype == Dtype::bf16 ? "__nv_bfloat16" : "__half");
      line("  if (status != cudaSuccess) return status;");
    }
    line("  return launch_blocks(kernel, start.workers, kThreads, sizeof(Shared), start.together,");
    line("                       start.stream, p);");
    line("}}");
    blank();
    line("}}  // namespace");
    line("}}  // namespace verbatim::cuda::tiles");
    blank();
    line("const verbatim::cuda::Library verbatim_library{{");
    const std::pair<const char*, std::string> members[] = {
        {"version", "verbatim::cuda::kLibraryVersion"},
        {"name", fmt::format("\"tl.{}.{}\"", k_.target, pass())},
        {"arithmetic", fmt::format("\"{}\"", arithmetic_)},
        {"mask", fmt::format("\"{}\"", k_.mask)},
        {"arch", fmt::to_string(gpu_.arch)},
        {"pass", fmt::format("verbatim::Pass::{}", pass())},
        {"dtype", fmt::format("verbatim::Dtype::{}", to_string(k_.dtype))},
        {"head_dim", "verbatim::cuda::tiles::kHeadDim"},
        {"head_dim_v", "verbatim::cuda::tiles::kHeadDimV"},
        {"tile", "{verbatim::cuda::tiles::kBM, verbatim::cuda::tiles::kBN}"},
        {"shared_bytes", "sizeof(verbatim::cuda::tiles::Shared)"},
        {"residents", "verbatim::cuda::tiles::residents"},
        {"workspace_bytes", backward() ? "verbatim::cuda::tiles::workspace_bytes" : "nullptr"},
        {"forward", backward() ? "nullptr" : "verbatim::cuda::tiles::launch"},
        {"backward", backward() ? "verbatim::cuda::tiles::launch" : "nullptr"}};
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
    const char* whose = kept || !tensor.queries ? "at" : "next";
    return {fmt::format("{}.at<const Element>(at.b, {}.at, {}.{})", ref, place, whose, h),
            ref + ".row", fmt::format("{}.used", place)};
  }
  static std::string reference(const Tensor& tensor) {
    std::string name;
    for (const char c : std::string_view(tensor.name)) name += static_cast<char>(std::tolower(c));
    return "p." + (name == "do" ? "dout" : name);
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
    const bool staged = is_staged(step);
    if (&step == first_of(k_.after, Step::Kind::reduce)) {
      line("begin_keys(p, at);  // where other chains share the tile");
      blank();
    }
    quote(step.at, staged ? ": started ahead" : "");
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
        line("const auto f_{} = factor_of<Element>(mma, {});", var(step.a).name, name(step.a));
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

  void load(const Step& step) {
    const Source from = source(*step.tensor);
    line("copy_in<Gpu, kThreads>({}, {}, {},", name(step.out), from.at, from.stride);
    line("                       {});", from.used);
    line("cp_async_fence();");
  }

  void load_numbers(const Step& step) {
    const bool lse = *step.tensor->name == 'L';
    line("{{");
    line("  const Visit now = visits.at(0);");
    line("  const int64_t first = p.sizes.row_index(at.b, now.q_head, now.at);");
    line("  copy_in<{}>({}, {}, {} + first, now.rows, {});", rows(var(step.out)),
         mma(var(step.out)), name(step.out), lse ? "p.lse" : "delta_of(p)",
         lse ? "-INFINITY" : "0");
    line("}}");
  }

  /// Every Wait is a barrier; between the last reader of a tile and what writes it next, and
  /// between that and its readers, there must be one.
  void move(const Step& step) {
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

  void reduce(const Step& step) {
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
  static bool of_v(const Step& reduce) { return std::string_view(reduce.tensor->name) == "dV"; }

  void wait(const Step& step) {
    line("cp_async_wait<{}>();", copies_.pending(step));
    if (const Step* careful = product_by(step.a)) {
      line("// In a cut tile a zero of {} may meet a NaN or an infinity that it does not see.",
           var(careful->a).name);
      line("const bool careful_{} = __syncthreads_or(", var(step.a).name);
      line("    {}nonfinite<Gpu, kThreads>({}));",
           var(step.a).staged ? "visits.at(0).is_cut() && " : "", name(step.a));
    } else {
      line("__syncthreads();");
    }
    start_copies(copies_.behind(step));
  }

  /// The product of a visit whose second factor is `tile`, and whose first is made of scores that
  /// are masked.
  const Step* product_by(int tile) const {
    const auto found = std::ranges::find_if(k_.visit, [&](const Step& s) {
      return s.kind == Step::Kind::compute && s.operation == Operation::gemm && s.b == tile &&
             is_masked(s.a);
    });
    return found == k_.visit.end() ? nullptr : &*found;
  }

  /// Whether a tile is made of masked scores, other than by a product.
  bool is_masked(int v) const {
    return std::ranges::any_of(k_.visit, [&](const Step& s) {
      if (s.out != v) return false;
      if (s.kind == Step::Kind::move) return is_masked(s.a);
      if (s.kind != Step::Kind::compute || s.operation == Operation::gemm) return false;
      return s.operation == Operation::mask || (s.a != v && is_masked(s.a)) ||
             (s.b >= 0 && s.b != v && is_masked(s.b));
    });
  }

  void compute(const Step& step) {
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
      case Operation::softmax: {
        std::string rescaled;
        for (const int v : step.rescaled) rescaled += ", " + name(v);
        if (step.out != step.a) line("copy({}, {});", name(step.a), name(step.out));
        if (step.c < 0) return line("probabilities({}, {}, unit);", name(step.out), name(step.b));
        return line("softmax({}, {}, {}, unit{});", name(step.out), name(step.b), name(step.c),
                    rescaled);
      }
      case Operation::logsumexp:
        return line("logsumexp({}, {}, unit, {});", name(step.a), name(step.b), name(step.out));
      default:
        return elementwise(step);
    }
  }

  /// `value` where pairs are hidden; -inf if it says nothing.
  void hide(int tile, const char* value) {
    const auto [q, k] = backward() ? std::pair("now", "at") : std::pair("at", "now");
    line("if (const Visit now = visits.at(0); now.is_cut() || {}.rows < kBN)", k);
    line("  hide<kBM, kBN>({}, {}, *at.order, *now.run,", mma(var(tile)), name(tile));
    line("                 {{{0}.row, {1}.row, {0}.rows, {1}.rows}}{2});", q, k, value);
  }

  void gemm(const Step& step) {
    const Variable& out = var(step.out);
    const bool from_registers = var(step.a).memory == Memory::registers;
    const std::string a =
        from_registers
            ? "f_" + var(step.a).name
            : fmt::format("{}({})", step.a_transposed ? "AcrossK" : "AlongK", name(step.a));
    const std::string b =
        fmt::format("{}({})", step.b_transposed ? "AlongK" : "AcrossK", name(step.b));
    if (!step.accumulate) line("clear({});", name(step.out));
    const std::string product = fmt::format("({}, {}, {},", mma(out), name(step.out), a);
    if (!is_masked(step.a)) return line("multiply{} {});", product, b);
    line("if (careful_{}{})", var(step.b).name,
         var(step.b).staged ? "" : " && visits.at(0).is_cut()");
    line("  multiply_carefully<{}>{}", from_registers ? rows(out) : extents(out), product);
    line("      {});", from_registers ? name(step.b) : b);
    line("else");
    line("  multiply{}", product);
    line("      {});", b);
  }

  void elementwise(const Step& step) {
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
      line("copy_out<kThreads>({}, {}, reinterpret_cast<SharedTile<Element, {}>&>(shared),", mma(v),
           name(step.a), extents(v));
      line("                   {0}.at<Element>(at.b, at.at, at.q_head), {0}.row, at.rows);",
           reference(*step.tensor));
    } else {
      line("copy_out<{}>({}, {}, p.lse + p.sizes.row_index(at.b, at.q_head, at.at), at.rows);",
           rows(v), mma(v), name(step.a));
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
      if (next == k_.visit.end() || !is(*next, Operation::softmax) || next->a != step->out)
        continue;
      const bool read_again = std::any_of(std::next(next), k_.visit.end(), [&](const Step& s) {
        return s.a == step->out || s.b == step->out;
      });
      if (next->c >= 0 ? next->out == step->out : !read_again) fold_ = &*step;
    }
  }

  const Program& program_;
  const Kernel& k_;
  const Gpu& gpu_;
  std::string arithmetic_;
  Copies copies_;
  bool by_rows_ = false;  // all products: each warp has rows of its own
  const Step* fold_ = nullptr;
  std::string out_;
  size_t indent_ = 0;
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
