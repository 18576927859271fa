#include "tl/emit_sm90.h"

#include "tl/roles.h"

namespace verbatim::tl {
namespace {

class Emitter : Roles {
 public:
  Emitter(const Examined& found, const std::string& arithmetic)
      : Roles(found), arithmetic_(arithmetic) {}

  std::string run() {
    refuse_what_is_missing();
    refuse_other_loops();
    head();
    shared();
    copy_tiles(false);
    copy_tiles(true);
    if (!turned().empty()) turn_tiles();
    compute();
    entry();
    return std::move(out_);
  }

 private:
  void head();
  void shared();
  void compute();
  void define_unit();
  void set_unit();
  void unscale(int result);
  void define_late();
  void define_next_chain();
  void wait(const Step& step);
  std::string leave(int tile, const std::string& use) const;
  void loop();
  void plain_visit();
  void begin_or_end();
  bool is_of_chain(const Step& step) const;
  void settle();
  void emit_all(Part steps);
  void emit(const Step& step);
  void reshape(const Step& step);
  void multiply_scores(const Step& step);
  void store(const Step& step);
  void entry();

  const std::string& arithmetic_;
  bool plain_ = false;  // what is written is of visits as most are
};

void Emitter::head() {
  line("// The forward of {} for {} (sm_90a), as `verbatim tl emit` writes it: every", arithmetic_,
       k_.target);
  line("// block stands under its line of TL. One warp {}, two lanes copy tiles, and",
       by_index() ? "reads lists of blocks" : "decodes the plan");
  line("// warpgroups compute: 64 rows each of the query tile that a chain keeps.");
  if (!turned().empty())
    line("// Another warp turns tiles of e4m3 that are read across their rows.");
  line("#include \"backend/cuda/library.cuh\"");
  if (by_index()) line("#include \"backend/cuda/sm90/tl/lists.cuh\"");
  line("#include \"backend/cuda/sm90/tl/tiles{}.cuh\"", e4m3() ? "_e4m3" : "");
  blank();
  line("namespace verbatim::cuda::sm90::tl {{");
  line("namespace {{");
  blank();
  parameters();
  line("constexpr int kGroups = kWarps / 4;");
  line("constexpr int kThreads = kWarpgroup * (1 + kGroups);");
  line("constexpr int kCtas = {};  // of a multiprocessor", ctas_in_roles(k_));
  if (!turned().empty()) line("static_assert(registers_suffice(kGroups, kCtas, true));");
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
  for (const int v : turned())
    line("SharedTile<Element, {}, {}> turned_{}[{}];  // columns and rows", columns(var(v)),
         rows(var(v)), var(v).name, kTurnedBuffers);
  for (const Variable& v : k_.variables)
    if (v.memory == Memory::shared) line("Slots<{}> of_{};", slots(v), v.name);
  for (const int v : turned()) line("Slots<{}> turning_{};", kTurnedBuffers, var(v).name);
  indent_ -= 2;
  line("}};");
  line("static_assert(sizeof(Shared) <= 227 * 1024);");
  line("using Tiling = Decoded<Shared, kBM, kBN>;");
  blank();
  define_maps();
}

/// The unit of the scores' softmax: of e4m3 one of every chain, as scales are of heads.
void Emitter::define_unit() {
  if (e4m3()) return line("float scale = 0, unit = 0;  // of a chain's heads");
  if (!fold_) return line("constexpr float unit = kLog2e;");
  line("// A positive scale is multiplied with in the exponent.");
  line("const Flag folds(p.scalars.scale > 0);");
  line("const float unit = folds ? p.scalars.scale_log2 : kLog2e;");
}

/// Of a chain in e4m3.
void Emitter::set_unit() {
  line("// Products are of values without the scales of their heads.");
  line("const QueryTile& heads = walk.now().queries;");
  line("scale = p.scalars.scale * p.q.scale(heads.q_head) * p.k.scale(heads.kv_head);");
  line("unit = {};", fold_ ? "scale > 0 ? scale * kLog2e : kLog2e" : "kLog2e");
}

void Emitter::compute() {
  line(
      "/// A warpgroup. The visits of all chains are one loop: the first scores of a chain run "
      "beside");
  line("/// the last products of the chain before.");
  line("__device__ __forceinline__ void compute(const {}& p, Shared& shared, int group) {{",
       params());
  indent_ = 2;
  define_unit();
  for (const Variable& v : k_.variables) {
    if (v.memory != Memory::registers) continue;
    quote(v.at);
    if (v.shape.size() == 2)
      line("auto r_{} = registers<Element, {}>();", v.name, columns(v));
    else
      line("auto r_{} = numbers();", v.name);
  }
  const int factor = early().back().a;
  line("auto f_{} = factor<Element, {}>();  // {}, reshaped", var(factor).name,
       columns(var(factor)), var(factor).name);
  line("Follower walk(shared, group);");
  line("const Turns turns(group, kGroups);");
  blank();
  define_late();
  define_next_chain();
  loop();
  line("turns.end();");
  indent_ = 0;
  line("}}");
  blank();
}

/// What is around the loop, as a lambda: behind it for one chain, in front of it for the next.
void Emitter::define_next_chain() {
  line("// The chain before is complete, if there was one, and another begins, if there is one.");
  line("const auto next_chain = [&] {{");
  indent_ += 2;
  line("if (walk.has_chain()) {{");
  indent_ += 2;
  line("const QueryTile& at = walk.before().queries;");
  for (const int v : partial_sums())
    line("complete({});  // every lane has summed the columns that it holds", name(v));
  for (size_t v = 0; v < k_.variables.size(); ++v)
    if (is_result(k_.variables[v])) unscale(static_cast<int>(v));
  blank();
  emit_all(k_.after);
  out_.pop_back();
  indent_ -= 2;
  line("}}");
  line("if (walk.stops()) return;");
  if (e4m3()) set_unit();
  blank();
  for (const Step& step : k_.before)
    if (step.kind != Step::Kind::wait && step.out != scores().out) emit_all(Part(&step, 1));
  out_.pop_back();
  indent_ -= 2;
  line("}};");
  blank();
}

void Emitter::unscale(int result) {
  line("// Of P times kE4m3One, and of V without the scale of its head.");
  line("const float unit_{} = p.v.scale(at.kv_head) / kE4m3One;", var(result).name);
  line("apply({0}, {0}, [&](float x) {{ return x * unit_{1}; }});", name(result), var(result).name);
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
    if (!is_turned(step.a)) line("clear_behind({}, walk.before().k_used, group);", tile_of(step.a));
    plain += (plain.empty() ? "" : " && ") + fmt::format("is_finite({}, group)", tile_of(step.a));
  }
  if (e4m3()) {
    line("if (!walk.cut_before()) return true;");
    line("if (!({})) return false;", plain);
    line("unmark(f_{});", var(early().back().a).name);
    line("return true;");
  } else {
    line("return !walk.cut_before() ||");
    line("       ({});", plain);
  }
  indent_ -= 2;
  line("}};");
  line("const auto multiply_factors = [&] {{");
  for (const Step& step : late()) {
    if (!is_late(step)) continue;
    indent_ += 2;
    quote(step.at);
    line("multiply({}, true, f_{}, {}({}));", name(step.out), var(step.a).name,
         step.b_transposed || is_turned(step.b) ? "AlongK" : "AcrossK", tile_of(step.b));
    indent_ -= 2;
  }
  line("}};");
  line("const auto leave_factors = [&](bool multiplied) {{");
  for (const Step& step : late())
    if (is_late(step))
      line("  if (!multiplied) multiply_carefully({}, f_{}, {});", name(step.out), var(step.a).name,
           tile_of(step.b));
  for (const Step& step : late())
    if (step.kind == Step::Kind::wait) line("  {}", leave(step.a, use_of(step.a)));
  line("}};");
  blank();
}

void Emitter::wait(const Step& step) {
  line("wait_full({}.full, {});", slots_of(step.a), use_of(step.a));
}
std::string Emitter::leave(int tile, const std::string& use) const {
  return fmt::format("leave({}.empty, {});", slots_of(tile), use);
}

void Emitter::loop() {
  for (const Statement& s : program_.statements)
    if (std::holds_alternative<Loop>(s.node)) quote(s.at);
  line("for (;; walk.advance()) {{");
  indent_ += 2;
  plain_visit();
  line("const Flag begins(walk.begins());     // a chain, or what is behind all");
  line("const Flag later(walk.has_before());  // the visit before has left its products");
  line("const Flag beside(later && await_factors());");
  begin_or_end();
  emit_all(early());
  out_.pop_back();
  indent_ -= 2;
  line("}}");
}

/// Without jumps over what is rare, each of which waits for instructions.
void Emitter::plain_visit() {
  plain_ = true;
  line("// Another visit of the chain, of which all rows see all keys, as of that before.");
  line("if (const Flag plain(walk.is_plain(){}); plain) {{", !fold_   ? ""
                                                             : e4m3() ? " && scale > 0"
                                                                      : " && folds");
  indent_ += 2;
  for (const Step& step : late())
    if (step.kind == Step::Kind::wait) emit_all(Part(&step, 1));
  emit_all(early());
  line("continue;");
  indent_ -= 2;
  line("}}");
  blank();
  plain_ = false;
}

/// What is done where no visit of this chain was before, or where the warpgroup sees nothing.
void Emitter::begin_or_end() {
  line("if (begins && walk.has_chain()) {{");
  for (const Step& step : k_.before)
    if (step.kind == Step::Kind::load) line("  {}", leave(step.out, "walk.chain() - 1"));
  line("}}");
  line("if (begins && !walk.stops()) {{");
  indent_ += 2;
  for (const Step& step : k_.before)
    if (step.kind == Step::Kind::wait) emit_all(Part(&step, 1));
  out_.pop_back();
  indent_ -= 2;
  line("}}");
  line("if (!walk.sees()) {{  // a visit of other warpgroups, a chain without any, or behind all");
  line("  turns.take();");
  line("  if (beside) multiply_factors();");
  line("  turns.pass();");
  indent_ += 2;
  settle();
  line("if (walk.stops()) break;");
  line("if (walk.has_visit()) {{");
  for (const Step& step : k_.visit) {
    if (step.kind != Step::Kind::wait) continue;
    line("  wait_full({}.full, walk.number());", slots_of(step.a));
    line("  {}", leave(step.a, "walk.number()"));
  }
  line("}}");
  line("continue;");
  indent_ -= 2;
  line("}}");
  blank();
}

/// Whether a step behind the scores' product knows more than the scores, and so comes behind the
/// end of the chain before: in e4m3 scales are of chains.
bool Emitter::is_of_chain(const Step& step) const {
  const bool of_scores = step.a == scores().out && step.out == step.a && step.b < 0;
  return step.kind == Step::Kind::compute && &step != &scores() &&
         (!of_scores || (e4m3() && step.by_scale));
}

/// The visit before is done.
void Emitter::settle() {
  for (const Step& step : late())
    if (is_late(step)) line("finish<0>({});", name(step.out));
  if (plain_) {
    for (const Step& step : late())
      if (step.kind == Step::Kind::wait) line("{}", leave(step.a, use_of(step.a)));
    return;
  }
  line("if (later) leave_factors(beside);");
  line("if (begins) next_chain();");
}

void Emitter::emit_all(Part steps) {
  // Steps around the loop have no visit before them.
  const auto settles = std::ranges::find_if(
      steps, [&](const Step& step) { return steps.data() == early().data() && is_of_chain(step); });
  for (auto step = steps.begin(); step != steps.end(); ++step) {
    if (step->kind == Step::Kind::load) continue;
    if (step == settles) {
      settle();
      if (e4m3() && fold_ && !plain_) line("const Flag folds(scale > 0);");
      blank();
    }
    if (plain_ && (is(*step, Operation::mask) || &*step == fold_)) continue;
    quote(step->at);
    if (rounds(*step)) continue;  // the Reshape's code, below, does both
    emit(*step);
    blank();
  }
}

void Emitter::emit(const Step& step) {
  if (step.kind == Step::Kind::wait) return wait(step);
  if (step.kind == Step::Kind::store) return store(step);
  if (step.kind == Step::Kind::reshape) return reshape(step);
  switch (step.operation) {
    case Operation::gemm:
      return multiply_scores(step);
    case Operation::fill:
      return line("fill({}, {});", name(step.out), number(*step.number));
    case Operation::mask:
      return line("if (walk.cuts()) fwd::hide<Tiling>({}, walk.now(), first_row(group));",
                  name(step.out));
    case Operation::softmax:
      if (step.out != step.a) line("copy({}, {});", name(step.a), name(step.out));
      return line("softmax({}, {}, {}, unit{});", name(step.out), name(step.b), name(step.c),
                  rescaled(step));
    case Operation::logsumexp:
      return line("logsumexp({}, {}, unit, {});", name(step.a), name(step.b), name(step.out));
    default:
      return elementwise(step);
  }
}

void Emitter::reshape(const Step& step) {
  const std::string& tile = var(step.a).name;
  const Step* softmax = softmax_of(step);
  if (!softmax)
    return line("round_to(f_{}, {}{});", tile, name(step.a),
                !e4m3()  ? ""
                : plain_ ? ", false"
                         : ", walk.cuts()");
  line("weigh(f_{}, {}, {}, {}, unit{});", tile, name(softmax->a), name(softmax->b),
       name(softmax->c), rescaled(*softmax));
}

void Emitter::multiply_scores(const Step& step) {
  line("turns.take();");
  line("multiply({}, false, AlongK({}, group),", name(step.out), tile_of(step.a));
  line("         {}({}));", step.b_transposed ? "AlongK" : "AcrossK", tile_of(step.b));
  if (plain_) {
    line("multiply_factors();");
  } else {
    line("if (beside)");
    line("  multiply_factors();");
    line("else");
    line("  multiply_nothing();");
  }
  line("turns.pass();");
  line("finish<1>({});", name(step.out));
  line("{}", leave(step.b, use_of(step.b)));
}

void Emitter::store(const Step& step) {
  const Variable& v = var(step.a);
  if (v.shape.size() == 2)
    line("{2}({0}, {1}.at<{3}>(at.batch, at.at, at.q_head), {1}.row, at.rows, group);",
         name(step.a), reference(*step.tensor), e4m3() ? "write_rows" : "copy_out",
         e4m3() ? "bfloat16_t" : "Element");
  else
    line("copy_out({}, {}, at.rows, group{});", name(step.a), lse_at("at.batch"),
         by_index() ? ", p.lse.row" : "");
}

void Emitter::entry() {
  const char* turns = turned().empty() ? "" : ", true";
  line("__global__ __launch_bounds__(kThreads, kCtas) void kernel(");
  line("    const __grid_constant__ {} p, const __grid_constant__ Maps maps) {{", params());
  line("  extern __shared__ __align__(1024) unsigned char memory[];");
  line("  auto& shared = *reinterpret_cast<Shared*>(memory);");
  line("  if (threadIdx.x == 0) {{");
  line("    init(static_cast<Walk<kGroups>&>(shared){});", turned().empty() ? "" : ", 3");
  for (const Variable& v : k_.variables)
    if (v.memory == Memory::shared)
      line("    init(shared.of_{}, {});", v.name, turned_bytes(k_, v) > 0 ? "1" : "kWarps");
  for (const int v : turned()) line("    init(shared.turning_{}, kWarps);", var(v).name);
  line("    ptx::fence_barrier_init();");
  line("  }}");
  line("  __syncthreads();");
  line("  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);");
  line("  if (warp < 4) {{");
  line("    ptx::registers_shrink<registers_of_service(kGroups, kCtas{})>();", turns);
  line("    if (warp == 0) {};", by_index()
                                     ? "decode<Tiling>(shared, p)"
                                     : "fwd::decode<Tiling>(shared, p.plan, p.hand_off.ticket)");
  line("    if (threadIdx.x == 32) copy_scored(maps, shared);");
  line("    if (threadIdx.x == 64) copy_factors(maps, shared);");
  if (!turned().empty()) line("    if (warp == 3) turn_factors(shared);");
  line("  }} else {{");
  line("    ptx::registers_grow<registers_of_group(kGroups, kCtas{})>();", turns);
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
