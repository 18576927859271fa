// From TL code to CUDA C++: every block of the kernel under its line of TL, in the words of
// src/backend/cuda/device/tiles.cuh. Names of a program become names behind a prefix (s_ in shared
// memory, r_ in registers); nothing else of its text gets into the code.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "contract/contract.h"
#include "core/sha256.h"
#include "tl/emit_sm90.h"
#include "tl/statements.h"
#include "verbatim/error.h"

namespace verbatim::tl {
namespace {

constexpr const char* kVersion = "emit.7";  // raised with the bits of what is written

/// A target that is translated for.
struct Gpu {
  const char* target;
  int arch;              // compute capability: 80
  const char* features;  // in tiles.cuh
};
constexpr std::array kGpus{Gpu{"a100", 80, "Sm80"}, Gpu{"l40s", 89, "Sm80"}, Gpu{"t4", 75, "Sm75"},
                           Gpu{"rtx8000", 75, "Sm75"}, Gpu{"h200", 90, ""}};

const Gpu& gpu_of(const std::string& target) {
  const auto found =
      std::ranges::find_if(kGpus, [&](const Gpu& gpu) { return target == gpu.target; });
  if (found != kGpus.end()) return *found;
  std::string known;
  for (const Gpu& gpu : kGpus) known += (known.empty() ? "" : ", ") + std::string(gpu.target);
  throw Error(ErrorCode::unsupported, kEmit, "there is no translation for this target yet",
              {"target", target, known, kGpus.front().target});
}

class Emitter : Statements {
 public:
  Emitter(const Examined& found, std::string arithmetic)
      : Statements(found), gpu_(gpu_of(k_.target)), arithmetic_(std::move(arithmetic)) {}

  std::string run() {
    refuse_what_is_missing();
    // A window of visits is read before the first, and the copies of as many begin.
    if (k_.stages > 7) refuse({}, "a loop of more than 7 stages", "param stages = 7");
    head();
    shared();
    chain();
    by_index() ? entry_of_lists() : entry();
    blank();
    line("}}  // namespace");
    line("}}  // namespace {}", place());
    blank();
    registration(place(), gpu_.arch, arithmetic_);
    return std::move(out_);
  }

 private:
  /// Of the words.
  const char* place() const {
    return by_warpgroups() ? "verbatim::cuda::sm90::tl"
           : by_index()    ? "verbatim::cuda::tiles::lists"
                           : "verbatim::cuda::tiles";
  }

  void head() {
    line("// The {} of {} for {} (sm_{}{}), as `verbatim tl emit`", pass(), arithmetic_, k_.target,
         gpu_.arch, by_warpgroups() ? "a" : "");
    line(
        "// writes it: every block stands under its line of TL. A chain keeps a tile, `at`, and "
        "visits");
    line("// {}; `visits` knows them.", by_index() ? "the blocks that its list names"
                                                   : "those of the other axis in the plan's order");
    std::vector<const char*> headers{"device/chains", "device/hand_off", "device/tiles", "library"};
    if (by_index()) headers = {"device/lists", "library"};
    for (const char* header : headers) line("#include \"backend/cuda/{}.cuh\"", header);
    if (e4m3()) line("#include \"backend/cuda/device/tiles_e4m3.cuh\"");
    if (backward())
      for (const char* header : {"device/sums", "prepare_backward"})
        line("#include \"backend/cuda/{}.cuh\"", header);
    if (by_warpgroups()) line("#include \"backend/cuda/sm90/tl/backward.cuh\"");
    blank();
    line("namespace {} {{", place());
    line("namespace {{");
    blank();
    if (!by_warpgroups()) line("using Gpu = {};", e4m3() ? "Sm89" : gpu_.features);
    parameters();
    line("constexpr int kThreads = 32 * kWarps;");
    blank();
  }

  void shared() {
    if (by_warpgroups()) number_buffers();
    line("struct Shared {{");
    indent_ += 2;
    for (const Variable& v : k_.variables) {
      if (v.memory != Memory::shared) continue;
      quote(v.at);
      line("SharedTile<Element, {}> s_{}{};", extents(v), v.name, v.staged ? "[kStages]" : "");
    }
    if (by_warpgroups()) line("uint64_t full[kBuffers];  // barriers of copies");
    line("Place at;");
    line("Visits<Pass::{}, kStages>::Slots visits;", pass());
    if (!by_index()) line("int32_t ended;");
    indent_ -= 2;
    line("}};");
    if (by_warpgroups())
      line("static_assert(sizeof(Shared) <= 227 * 1024);");
    else
      line("static_assert(sizeof(Place) + sizeof(Shared::visits) + 4 <= {});", kPlaceBytes);
    blank();
    if (!by_warpgroups()) return;
    define_maps();
  }
  /// Numbers of the first buffer of each tile that copies fill.
  void number_buffers() {
    std::string next = "0";
    for (const Step* load : loads()) {
      const Variable& v = var(load->out);
      line("constexpr int of_{} = {};", v.name, next);
      next = fmt::format("of_{} + {}", v.name, v.staged ? "kStages" : "1");
    }
    line("constexpr int kBuffers = {};", next);
    line("static_assert(kBuffers <= 32);  // bits of `phases`");
    blank();
  }

  void chain() {
    if (by_warpgroups()) {
      line("__device__ __forceinline__ void do_chain(const {}& p, const Maps& maps,", params());
      line("                                         uint32_t& phases, Shared& shared) {{");
    } else {
      line("__device__ __forceinline__ void do_chain(const {}& p, Shared& shared) {{", params());
    }
    indent_ = 2;
    line("const Place& at = shared.at;");
    line("Visits<Pass::{}, kStages> visits(at, {}shared.visits);", pass(),
         by_index() ? "p.kv_edges, " : "");
    if (e4m3()) {
      line("// Products are of values without the scales of their heads.");
      line("const float scale = p.scalars.scale * p.q.scale(at.q_head) * p.k.scale(at.kv_head);");
    }
    if (fold_) {
      line("// A positive scale is multiplied with in the exponent.");
      line("const bool folds = {} > 0;", scale());
      line("const float unit = folds ? {} : kLog2e;",
           e4m3() ? "scale * kLog2e" : "p.scalars.scale_log2");
    } else {
      line("constexpr float unit = kLog2e;");
    }
    for (const auto& [mma, split] : products())
      if (e4m3())
        line("const {}OfE4m3<Gpu, {}> {};", mma == "mma" ? "Scores" : "Result", split.rows, mma);
      else if (by_warpgroups())
        line("const Product<Element, {}, {}, {}> {};", columns_of(mma), split.rows, split.columns,
             mma);
      else
        line("const Product<Gpu, Element, {}, {}> {};", split.rows, split.columns, mma);
    blank();
    allocate_registers();
    define_copies();
    emit(k_.before, true);
    loop();
    for (const int v : partial_sums()) {
      line("complete({});  // every lane has summed the columns that it holds", name(v));
      blank();
    }
    for (size_t v = 0; v < k_.variables.size(); ++v)
      if (const std::string r = name(static_cast<int>(v)); is_result(k_.variables[v])) {
        line("// Of P times kE4m3One, and of V without the scale of its head.");
        line("const float unit_{} = p.v.scale(at.kv_head) / kE4m3One;", k_.variables[v].name);
        line("apply({0}, {0}, [&](float x) {{ return x * unit_{1}; }});", r, k_.variables[v].name);
        blank();
      }
    emit(k_.after, false);
    if (out_.ends_with("\n\n")) out_.pop_back();
    indent_ = 0;
    line("}}");
    blank();
  }

  /// "kBN" of the products (BM, BN).
  std::string columns_of(const std::string& product) const {
    const auto has = [&](const Variable& v) {
      return v.memory == Memory::registers && v.shape.size() == 2 && mma(v) == product;
    };
    return columns(*std::ranges::find_if(k_.variables, has));
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

  /// Of a CTA for every chain.
  void entry_of_lists() {
    line("__global__ __launch_bounds__(kThreads) void kernel(");
    line("    const __grid_constant__ {} p) {{", params());
    line("  extern __shared__ __align__(128) unsigned char memory[];");
    line("  auto& shared = *reinterpret_cast<Shared*>(memory);");
    line("  start(shared.at, p);");
    line("  do_chain(p, shared);");
    line("}}");
    blank();
    line("cudaError_t launch(const {}& p, cudaStream_t stream) {{", params());
    line("  return launch_chains(kernel, kThreads, sizeof(Shared), stream, p);");
    line("}}");
  }

  void entry() {
    line("__global__ __launch_bounds__(kThreads) void kernel(");
    line("    const __grid_constant__ {} p{}) {{", params(),
         by_warpgroups() ? ", const __grid_constant__ Maps maps" : "");
    line("  extern __shared__ __align__({}) unsigned char memory[];", by_warpgroups() ? 1024 : 128);
    line("  auto& shared = *reinterpret_cast<Shared*>(memory);");
    if (by_warpgroups()) begin_copies();
    line("  for (start(shared.at); next_chain<Pass::{}>(shared.at, p);) do_chain(p, {}shared);",
         pass(), by_warpgroups() ? "maps, phases, " : "");
    line(
        "  if (ends_given_up(p.hand_off, shared.ended)) destroy_results(p, threadIdx.x, "
        "kThreads);");
    line("}}");
    blank();
    line("cudaError_t residents(int* count) {{");
    line("  return residents_of(kernel, kThreads, sizeof(Shared), count);");
    line("}}");
    if (backward()) {
      line("int64_t workspace_bytes(const Sizes& sizes, int32_t tile_sums, bool piece) {{");
      line("  return BackwardWorkspace::of(sizes, tile_sums, piece).end * int64_t{{4}};");
      line("}}");
    }
    line("cudaError_t launch(const {}& p, const Start& start) {{", params());
    if (backward()) {
      line("  {}cudaError_t status =", by_warpgroups() ? "" : "const ");
      line("      prepare_backward<{}>(p, start.empty_rows, start.stream);",
           k_.dtype == Dtype::bf16 ? "__nv_bfloat16" : "__half");
      if (!by_warpgroups()) line("  if (status != cudaSuccess) return status;");
    }
    if (by_warpgroups()) {
      line("  Maps maps;");
      make_maps();
    }
    line("  return launch_blocks(kernel, start.workers, kThreads, sizeof(Shared), start.together,");
    line("                       start.stream, p{});", by_warpgroups() ? ", maps" : "");
    line("}}");
  }

  /// Barriers of copies: next_chain() begins with one that shows them to all threads.
  void begin_copies() {
    line("  uint32_t phases = 0;  // of copies: the parity of the next of each buffer");
    line("  if (threadIdx.x == 0) {{");
    line("    init(shared.full, 1);");
    line("    ptx::fence_barrier_init();");
    line("  }}");
  }

  const Gpu& gpu_;
  std::string arithmetic_;
};

std::string arithmetic_of(const Examined& found) {
  const std::string hash =
      sha256(fmt::format("{}\n{}\n{}", kVersion, found.kernel.target, hash_of(found.program)));
  return contract::kTranslatedTl + hash.substr(0, 16);
}

}  // namespace

Emitted emit(std::string_view text, std::string_view file, const CheckOptions& options) {
  Examined found = examine_code(text, file, options, kEmit);
  if (!options.target.empty()) found.kernel.target = options.target;
  if (found.kernel.by_query && found.kernel.dtype == Dtype::e4m3)
    throw Error(ErrorCode::unsupported, kEmit, "scales are of heads, which are rows here",
                {"dtype", "e4m3", "bf16 or f16", "bf16"});
  const std::string what(found.kernel.index.empty() ? to_string(found.kernel.pass) : "selected");
  const std::string arithmetic = arithmetic_of(found);
  const Gpu& gpu = gpu_of(found.kernel.target);
  const bool hopper = gpu.arch == 90;  // its own instructions are those of sm_90a alone
  const bool in_roles = hopper && found.kernel.pass == Pass::forward;
  return {what + "_" + found.kernel.target,
          in_roles ? emit_sm90(found, arithmetic) : Emitter(found, arithmetic).run(), arithmetic,
          fmt::format("{}{}", gpu.arch, hopper ? "a" : "")};
}

}  // namespace verbatim::tl
