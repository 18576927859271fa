#include "tl/emit_sm90.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "tl/statements.h"

namespace verbatim::tl {
namespace {

constexpr int64_t kRows = 64;          // of a tile of queries, for a warpgroup
constexpr int64_t kSpan = 64;          // elements that a swizzle spans
constexpr int64_t kMostColumns = 128;  // of a product: what fwd::hide() has bits for

/// A visit is cut behind its Reshape. What comes before, its scores, takes turns with those of
/// other warpgroups; the products of what the Reshape made run beside the scores of the next visit.
class Emitter : Statements {
 public:
  Emitter(const Examined& found, const std::string& arithmetic)
      : Statements(found), arithmetic_(arithmetic), cut_(find_cut()) {}

  std::string run() {
    refuse_what_is_missing();
    refuse_other_loops();
    head();
    shared();
    copy_tiles(false);
    copy_tiles(true);
    compute();
    entry();
    return std::move(out_);
  }

 private:
  using Part = std::span<const Step>;
  static bool is(const Step& step, Operation operation) {
    return step.kind == Step::Kind::compute && step.operation == operation;
  }
  bool is_late(const Step& step) const {
    return is(step, Operation::gemm) && var(step.a).memory == Memory::registers;
  }
  /// The number of steps up to the first Reshape, with it.
  size_t find_cut() const {
    const auto reshape = std::ranges::find(k_.visit, Step::Kind::reshape, &Step::kind);
    return static_cast<size_t>(reshape - k_.visit.begin()) + (reshape != k_.visit.end());
  }
  Part early() const { return Part(k_.visit).first(cut_); }
  Part late() const { return Part(k_.visit).subspan(cut_); }
  /// Buffers of a tile in shared memory: of one that a chain keeps two, if there is room, so that
  /// the next chain's arrives during this one.
  const char* slots(const Variable& v) const {
    if (v.staged) return "kStages";
    int64_t kept = 0;
    for (const Variable& other : k_.variables)
      if (other.memory == Memory::shared && !other.staged) kept += bytes_of(k_, other);
    const int64_t all = find_target(k_.target).shared_bytes + kReserved;
    const int64_t room = all / ctas_in_roles(k_) - kReserved - kWalkBytes;
    return shared_bytes(k_) + kept <= room ? "2" : "1";
  }
  /// Of its ring, which use a tile is: the chain's, this visit's, or that of the visit before.
  std::string use_of(int v) const {
    if (!var(v).staged) return "walk.chain()";
    return is_read_late(v) ? "walk.number() - 1" : "walk.number()";
  }
  bool is_read_late(int tile) const {
    return std::ranges::any_of(late(), [&](const Step& s) { return is_late(s) && s.b == tile; });
  }
  std::string tile_of(int v) const {
    return fmt::format("use(shared.s_{}, {})", var(v).name, use_of(v));
  }

  void refuse_other_loops() const;
  void head();
  void shared();
  void copy_tiles(bool behind);
  void copy(const Step& load);
  void compute();
  void define_late();
  void wait(const Step& step);
  std::string leave(int tile) const;
  void loop();
  void emit_all(Part steps);
  void emit(const Step& step);
  void multiply_scores(const Step& step);
  void store(const Step& step);
  void entry();

  const std::string& arithmetic_;
  size_t cut_;
};

void Emitter::refuse_other_loops() const {
  for (const Variable& v : k_.variables) {
    if (v.shape[0] == "BM" && v.rows != kRows * k_.warps / 4)
      refuse(v.at, "a tile whose queries are not 64 for every four warps", "warps = BM / 16");
    if (v.memory == Memory::shared && v.cols % kSpan != 0)
      refuse(v.at, "a row in shared memory that is no multiple of 64", "multiples of 64");
    if (v.memory == Memory::registers && v.cols > kMostColumns)
      refuse(v.at, "a product of more than 128 columns", "at most 128");
  }
  if (shared_bytes(k_) + kWalkBytes > find_target(k_.target).shared_bytes)
    refuse(k_.visit.front().at, "tiles that leave no 4 KiB of shared memory for visits",
           "fewer stages");
  if ((k_.stages & (k_.stages - 1)) != 0)
    refuse(k_.visit.front().at, "a number of stages that is no power of two", "stages = 2");
  int64_t softmaxes = 0, scores = 0;
  for (const Step& step : early()) {
    softmaxes += is(step, Operation::softmax);
    scores += is(step, Operation::gemm);
    if (is(step, Operation::gemm) &&
        (step.a_transposed || step.accumulate || scores > 1 || softmaxes > 0))
      refuse(step.at, "a product in front of the Reshape other than that of the scores",
             "one product Q, K^T in front of the softmax");
    if (step.kind == Step::Kind::wait && !var(step.a).staged)
      refuse(step.at, "a Wait in the loop for a tile of the chain", "one in front of the loop");
  }
  if (softmaxes != 1 || scores != 1)
    refuse(k_.visit.back().at, "a loop without scores, an online softmax and a Reshape",
           "the order of kernels/tl/forward.tl");
  for (const Step& step : late())
    if (step.kind != Step::Kind::load && step.kind != Step::Kind::wait &&
        !(is_late(step) && step.accumulate))
      refuse(step.at, "a step behind the Reshape", "products that accumulate");
  for (const Step& load : k_.visit) {
    if (load.kind != Step::Kind::load) continue;
    const auto read_in = [&](Part part) {
      return std::ranges::any_of(part, [&](const Step& s) {
        return is(s, Operation::gemm) && (s.a == load.out || s.b == load.out);
      });
    };
    if (read_in(early()) == read_in(late()))
      refuse(load.at, "a tile that is read on both sides of the Reshape, or on none",
             "a copy for each side");
  }
  for (const Step& step : early())
    for (const Step& sum : late())
      if (is_late(sum) && (step.a == sum.out || step.b == sum.out || step.out == sum.out))
        refuse(step.at, "what reads or writes a sum that is still added to", "it behind the loop");
}

void Emitter::head() {
  line("// The forward of {} for {} (sm_90a), as `verbatim tl emit` writes it: every", arithmetic_,
       k_.target);
  line("// block stands under its line of TL. One warp {}, two lanes copy tiles, and",
       by_index() ? "reads lists of blocks" : "decodes the plan");
  line("// warpgroups compute: 64 rows each of the query tile that a chain keeps.");
  line("#include \"backend/cuda/library.cuh\"");
  if (by_index()) line("#include \"backend/cuda/sm90/tl/lists.cuh\"");
  line("#include \"backend/cuda/sm90/tl/tiles.cuh\"");
  blank();
  line("namespace verbatim::cuda::sm90::tl {{");
  line("namespace {{");
  blank();
  parameters();
  line("constexpr int kGroups = kWarps / 4;");
  line("constexpr int kThreads = kWarpgroup * (1 + kGroups);");
  line("constexpr int kCtas = {};  // of a multiprocessor", ctas_in_roles(k_));
  blank();
}

void Emitter::shared() {
  line("struct Shared : Walk<kGroups> {{");
  indent_ += 2;
  for (const Variable& v : k_.variables) {
    if (v.memory != Memory::shared) continue;
    quote(v.at);
    line("SharedTile<Element, {}> s_{}[{}];", extents(v), v.name, slots(v));
  }
  for (const Variable& v : k_.variables)
    if (v.memory == Memory::shared) line("Slots<{}> of_{};", slots(v), v.name);
  indent_ -= 2;
  line("}};");
  line("static_assert(sizeof(Shared) <= 227 * 1024);");
  line("using Tiling = Decoded<Shared, kBM, kBN>;");
  blank();
  define_maps();
}

/// Each side of the Reshape has a lane: the buffers of one are free before those of the other.
void Emitter::copy_tiles(bool behind) {
  const auto is_here = [&](const Step& step) {
    return step.kind == Step::Kind::load && is_read_late(step.out) == behind;
  };
  line("/// Copies in the background what is read {} the Reshape: one lane.",
       behind ? "behind" : "in front of");
  line("__device__ void copy_{}(const Maps& maps, Shared& shared) {{",
       behind ? "factors" : "scored");
  indent_ = 2;
  line("Leader walk(shared);");
  line("while (walk.next_chain()) {{");
  indent_ += 2;
  if (std::ranges::any_of(k_.before, is_here)) line("const QueryTile& at = walk.now().queries;");
  for (const Step& step : k_.before)
    if (is_here(step)) copy(step);
  line("while (walk.next_visit()) {{");
  indent_ += 2;
  line("const auto& visit = walk.now();");
  for (const Step& step : k_.visit)
    if (is_here(step)) copy(step);
  indent_ -= 2;
  line("}}");
  line("walk.leave_chain();");
  indent_ -= 2;
  line("}}");
  indent_ = 0;
  line("}}");
  blank();
}

void Emitter::copy(const Step& load) {
  quote(load.at);
  const bool kept = !var(load.out).staged;
  line("copy_in(shared.s_{0}, shared.of_{0}, walk.{1}(), maps.{2}, {3},", var(load.out).name,
       kept ? "chain" : "number", member(*load.tensor), kept ? "kOfChain" : "kOfVisit");
  line("        {1}, {0}.{2}, {0}.batch);", kept ? "at" : "visit.queries",
       kept ? "at.at" : "visit.k_at", load.tensor->queries ? "q_head" : "kv_head");
}

void Emitter::compute() {
  line("/// A warpgroup.");
  line("__device__ __forceinline__ void compute(const {}& p, Shared& shared, int group) {{",
       params());
  indent_ = 2;
  if (fold_) {
    line("// A positive scale is multiplied with in the exponent.");
    line("const Flag folds(p.scalars.scale > 0);");
    line("const float unit = folds ? p.scalars.scale_log2 : kLog2e;");
  } else {
    line("constexpr float unit = kLog2e;");
  }
  for (const Variable& v : k_.variables) {
    if (v.memory != Memory::registers) continue;
    quote(v.at);
    if (v.shape.size() == 2)
      line("auto r_{} = registers<Element, {}>();", v.name, columns(v));
    else
      line("auto r_{} = numbers();", v.name);
  }
  line("auto decay = numbers();  // of what is summed, when maxima grow");
  const int factor = early().back().a;
  line("auto f_{} = factor<Element, {}>();  // {}, reshaped", var(factor).name,
       columns(var(factor)), var(factor).name);
  line("Follower walk(shared, group);");
  line("const Turns turns(group, kGroups);");
  blank();
  define_late();
  line("while (walk.next_chain()) {{");
  indent_ += 2;
  blank();
  emit_all(k_.before);
  loop();
  for (const int v : partial_sums()) {
    line("complete({});  // every lane has summed the columns that it holds", name(v));
    blank();
  }
  line("const QueryTile& at = walk.queries();");
  emit_all(k_.after);
  line("walk.leave_chain();");
  indent_ -= 2;
  line("}}");
  line("turns.end();");
  indent_ = 0;
  line("}}");
  blank();
}

/// What a visit leaves to the next, as lambdas: its products, and what is around them.
void Emitter::define_late() {
  std::string plain;
  line(
      "// The products behind a visit's Reshape run beside the next visit's scores, but those of "
      "a");
  line("// cut tile where a zero may meet a NaN or an infinity that it does not see.");
  line("const auto await_factors = [&] {{");
  indent_ += 2;
  for (const Step& step : late()) {
    if (step.kind != Step::Kind::wait) continue;
    quote(step.at);
    wait(step);
    line("clear_behind({}, walk.before().k_used, group);", tile_of(step.a));
    plain += (plain.empty() ? "" : " && ") + fmt::format("is_finite({}, group)", tile_of(step.a));
  }
  line("return !walk.cuts(walk.before()) ||");
  line("       ({});", plain);
  indent_ -= 2;
  line("}};");
  line("const auto multiply_factors = [&] {{");
  for (const Step& step : late()) {
    if (!is_late(step)) continue;
    indent_ += 2;
    quote(step.at);
    line("multiply({}, true, f_{}, {}({}));", name(step.out), var(step.a).name,
         step.b_transposed ? "AlongK" : "AcrossK", tile_of(step.b));
    indent_ -= 2;
  }
  line("}};");
  line("const auto leave_factors = [&](bool multiplied) {{");
  for (const Step& step : late())
    if (is_late(step))
      line("  if (!multiplied) multiply_carefully({}, f_{}, {});", name(step.out), var(step.a).name,
           tile_of(step.b));
  for (const Step& step : late())
    if (step.kind == Step::Kind::wait) line("  {}", leave(step.a));
  line("}};");
  blank();
}

void Emitter::wait(const Step& step) {
  line("wait_full(shared.of_{}.full, {});", var(step.a).name, use_of(step.a));
}
std::string Emitter::leave(int tile) const {
  return fmt::format("leave(shared.of_{}.empty, {});", var(tile).name, use_of(tile));
}

void Emitter::loop() {
  for (const Statement& s : program_.statements)
    if (std::holds_alternative<Loop>(s.node)) quote(s.at);
  line("while (walk.next_visit()) {{");
  indent_ += 2;
  line("const Flag later(walk.has_before());  // there was a visit before");
  line("const Flag beside(later && await_factors());");
  blank();
  emit_all(early());
  out_.pop_back();
  indent_ -= 2;
  line("}}");
  for (const Step& step : k_.before)
    if (step.kind == Step::Kind::load) line("{}", leave(step.out));
  line("if (walk.has_before()) {{  // the products of the last visit");
  line("  const Flag beside(await_factors());");
  line("  turns.take();");
  line("  if (beside) multiply_factors();");
  line("  turns.pass();");
  for (const Step& step : late())
    if (is_late(step)) line("  finish<0>({});", name(step.out));
  line("  leave_factors(beside);");
  line("}}");
  blank();
}

void Emitter::emit_all(Part steps) {
  for (const Step& step : steps) {
    if (step.kind == Step::Kind::load) continue;
    quote(step.at);
    emit(step);
    blank();
  }
}

void Emitter::emit(const Step& step) {
  if (step.kind == Step::Kind::wait) return wait(step);
  if (step.kind == Step::Kind::store) return store(step);
  if (step.kind == Step::Kind::reshape)
    return line("round_to(f_{}, {});", var(step.a).name, name(step.a));
  switch (step.operation) {
    case Operation::gemm:
      return multiply_scores(step);
    case Operation::fill:
      return line("fill({}, {});", name(step.out), number(*step.number));
    case Operation::mask:
      return line("if (walk.cuts(walk.now())) fwd::hide<Tiling>({}, walk.now(), first_row(group));",
                  name(step.out));
    case Operation::softmax:
      line("softmax({}, {}, {}, unit, decay);", name(step.out), name(step.b), name(step.c));
      for (const int sum : step.rescaled) line("finish<0>({});", name(sum));
      line("if (later) leave_factors(beside), walk.leave_before();");
      for (const int sum : step.rescaled) line("rescale({}, decay);", name(sum));
      return;
    case Operation::logsumexp:
      return line("logsumexp({}, {}, unit, {});", name(step.a), name(step.b), name(step.out));
    default:
      return elementwise(step);
  }
}

void Emitter::multiply_scores(const Step& step) {
  line("turns.take();");
  line("multiply({}, false, AlongK({}, group),", name(step.out), tile_of(step.a));
  line("         {}({}));", step.b_transposed ? "AlongK" : "AcrossK", tile_of(step.b));
  line("if (beside)");
  line("  multiply_factors();");
  line("else");
  line("  multiply_nothing();");
  line("turns.pass();");
  line("finish<1>({});", name(step.out));
  line("{}", leave(step.b));
}

void Emitter::store(const Step& step) {
  const Variable& v = var(step.a);
  if (v.shape.size() == 2)
    line("copy_out({0}, {1}.at<Element>(at.batch, at.at, at.q_head), {1}.row, at.rows, group);",
         name(step.a), reference(*step.tensor));
  else
    line("copy_out({}, p.lse + p.sizes.row_index(at.batch, at.q_head, at.at), at.rows, group);",
         name(step.a));
}

void Emitter::entry() {
  line("__global__ __launch_bounds__(kThreads, kCtas) void kernel(");
  line("    const __grid_constant__ {} p, const __grid_constant__ Maps maps) {{", params());
  line("  extern __shared__ __align__(1024) unsigned char memory[];");
  line("  auto& shared = *reinterpret_cast<Shared*>(memory);");
  line("  if (threadIdx.x == 0) {{");
  line("    init(static_cast<Walk<kGroups>&>(shared));");
  for (const Variable& v : k_.variables)
    if (v.memory == Memory::shared) line("    init(shared.of_{}, kWarps);", v.name);
  line("    ptx::fence_barrier_init();");
  line("  }}");
  line("  __syncthreads();");
  line("  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);");
  line("  if (warp < 4) {{");
  line("    ptx::registers_shrink<registers_of_service(kGroups, kCtas)>();");
  line("    if (warp == 0) {};", by_index()
                                     ? "decode<Tiling>(shared, p)"
                                     : "fwd::decode<Tiling>(shared, p.plan, p.hand_off.ticket)");
  line("    if (threadIdx.x == 32) copy_scored(maps, shared);");
  line("    if (threadIdx.x == 64) copy_factors(maps, shared);");
  line("  }} else {{");
  line("    ptx::registers_grow<registers_of_group(kGroups, kCtas)>();");
  line("    compute(p, shared, warp / 4 - 1);");
  line("  }}");
  line("}}");
  blank();
  if (!by_index()) {
    line("cudaError_t residents(int* count) {{");
    line("  return residents_of(kernel, kThreads, sizeof(Shared), count);");
    line("}}");
  }
  line("cudaError_t launch(const {}& p, {}) {{", params(),
       by_index() ? "cudaStream_t stream" : "const Start& start");
  line("  Maps maps;");
  line("  cudaError_t status = cudaSuccess;");
  make_maps();
  if (by_index()) {
    line("  return launch_chains(kernel, kThreads, sizeof(Shared), stream, p, maps);");
  } else {
    line("  return launch_blocks(kernel, start.workers, kThreads, sizeof(Shared), start.together,");
    line("                       start.stream, p, maps);");
  }
  line("}}");
  blank();
  line("}}  // namespace");
  line("}}  // namespace verbatim::cuda::sm90::tl");
  blank();
  registration("verbatim::cuda::sm90::tl", 90, arithmetic_);
}

}  // namespace

std::string emit_sm90(const Examined& found, const std::string& arithmetic) {
  return Emitter(found, arithmetic).run();
}

}  // namespace verbatim::tl
