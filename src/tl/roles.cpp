#include "tl/roles.h"

#include <algorithm>

namespace verbatim::tl {
namespace {

constexpr int64_t kRows = 64;          // of a tile of queries, for a warpgroup
constexpr int64_t kSpan = 64;          // elements that a swizzle spans
constexpr int64_t kMostColumns = 128;  // of a product: what fwd::hide() has bits for

}  // namespace

size_t Roles::find_cut() const {
  const auto reshape = std::ranges::find(k_.visit, Step::Kind::reshape, &Step::kind);
  return static_cast<size_t>(reshape - k_.visit.begin()) + (reshape != k_.visit.end());
}

bool Roles::is_read_late(int tile) const {
  return std::ranges::any_of(late(), [&](const Step& s) { return is_late(s) && s.b == tile; });
}

std::vector<int> Roles::turned() const {
  std::vector<int> all;
  for (int v = 0; v < static_cast<int>(k_.variables.size()); ++v)
    if (is_turned(v)) all.push_back(v);
  return all;
}

const char* Roles::slots(const Variable& v) const {
  if (v.staged) return "kStages";
  int64_t kept = 0;
  for (const Variable& other : k_.variables)
    if (other.memory == Memory::shared && !other.staged) kept += bytes_of(k_, other);
  const int64_t all = find_target(k_.target).shared_bytes + kReserved;
  const int64_t room = all / ctas_in_roles(k_) - kReserved - kWalkBytes;
  return shared_bytes(k_) + kept <= room ? "2" : "1";
}

std::string Roles::use_of(int v) const {
  if (!var(v).staged) return "walk.chain()";
  return is_read_late(v) ? "walk.number() - 1" : "walk.number()";
}

void Roles::refuse_other_tiles() const {
  for (const Variable& v : k_.variables) {
    if (v.shape[0] == "BM" && v.rows != kRows * k_.warps / 4)
      refuse(v.at, "a tile whose queries are not 64 for every four warps", "warps = BM / 16");
    if (v.memory == Memory::shared && v.cols % kSpan != 0)
      refuse(v.at, "a row in shared memory that is no multiple of 64", "multiples of 64");
    const auto is_swizzled = [](int64_t bytes) { return bytes == 64 || bytes == 128; };
    if (e4m3() && v.memory == Memory::shared &&
        !(is_swizzled(v.cols) && (turned_bytes(k_, v) == 0 || is_swizzled(v.rows))))
      refuse(v.at, "a row of e4m3 in shared memory, of keys too, that is not 64 or 128 long",
             "head dims and BN of 64 or 128");
    if (v.memory == Memory::registers && v.cols > kMostColumns)
      refuse(v.at, "a product of more than 128 columns", "at most 128");
  }
  if (shared_bytes(k_) + kWalkBytes > find_target(k_.target).shared_bytes)
    refuse(k_.visit.front().at, "tiles that leave no 4 KiB of shared memory for visits",
           "fewer stages");
  if ((k_.stages & (k_.stages - 1)) != 0)
    refuse(k_.visit.front().at, "a number of stages that is no power of two", "stages = 2");
}

/// A chain's first scores are made in front of the end of the chain before.
void Roles::refuse_other_scores() const {
  for (const Step& step : early()) {
    if (&step == &scores()) break;
    if (step.kind == Step::Kind::compute)
      refuse(step.at, "a step of a visit in front of the product of its scores", "it behind that");
  }
  const int made = scores().out;
  for (const std::vector<Step>* around : {&k_.before, &k_.after})
    for (const Step& step : *around)
      if (step.a == made || step.b == made || step.c == made ||
          (step.out == made && !is(step, Operation::fill)))
        refuse(step.at, "a step around the loop on the scores, which the next chain has made",
               "it in the loop");
}

void Roles::refuse_other_loops() const {
  refuse_other_tiles();
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
  refuse_other_scores();
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

/// Each side of the Reshape has a lane: the buffers of one are free before those of the other.
void Roles::copy_tiles(bool behind) {
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

void Roles::copy(const Step& load) {
  quote(load.at);
  const bool kept = !var(load.out).staged;
  line("copy_in(shared.s_{0}, shared.of_{0}, walk.{1}(), maps.{2}, {3},", var(load.out).name,
       kept ? "chain" : "number", member(*load.tensor), kept ? "kOfChain" : "kOfVisit");
  line("        {1}, {0}.{2}, {0}.batch);", kept ? "at" : "visit.queries",
       kept ? "at.at" : "visit.k_at", load.tensor->queries ? "q_head" : "kv_head");
}

/// By a warp, in the order of copies.
void Roles::turn_tiles() {
  line("/// Exchanges rows and columns of tiles of e4m3 that are read across their rows: a warp.");
  line("__device__ void turn_factors(Shared& shared) {{");
  line("  Leader<kGroups, 32> walk(shared);");
  line("  while (walk.next_chain()) {{");
  line("    while (walk.next_visit()) {{");
  for (const int v : turned())
    line(
        "      turn(shared.s_{0}, shared.of_{0}, shared.turned_{0}, shared.turning_{0},\n"
        "           walk.number(), walk.now().k_used);",
        var(v).name);
  line("    }}");
  line("    walk.leave_chain();");
  line("  }}");
  line("}}");
  blank();
}

}  // namespace verbatim::tl
