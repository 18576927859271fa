#include "tl/translation.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "tl/parser.h"
#include "verbatim/error.h"

namespace verbatim::tl {

Translation::Translation(const Examined& found)
    : program_(found.program),
      k_(found.kernel),
      copies_(k_),
      by_rows_(std::ranges::any_of(k_.visit, [&](const Step& s) {
        return s.kind == Step::Kind::compute && s.operation == Operation::gemm &&
               var(s.a).memory == Memory::registers;
      })) {
  find_masked();
}

std::string Translation::text_at(Span at) const { return text_at(program_.statements, at); }

std::string Translation::name(int v) const {
  const Variable& variable = var(v);
  if (variable.memory != Memory::shared) return "r_" + variable.name;
  return "shared.s_" + variable.name + (variable.staged ? "[visits.buffer(0)]" : "");
}

/// An extent as the constant of its parameter.
std::string Translation::extent(const std::string& of, int64_t value) {
  for (const char* known : {"BM", "BN", "HeadDim", "HeadDimV"})
    if (of == known) return "k" + of;
  return fmt::to_string(value);
}

std::string Translation::extents(const Variable& v) const {
  return v.shape.size() == 2 ? rows(v) + ", " + extent(v.shape[1], v.cols) : rows(v);
}

const Step* Translation::first_of(const std::vector<Step>& steps, Step::Kind kind) {
  const auto found = std::ranges::find(steps, kind, &Step::kind);
  return found == steps.end() ? nullptr : &*found;
}

std::string Translation::text_at(const std::vector<Statement>& statements, Span at) {
  for (const Statement& s : statements) {
    if (s.at.begin == at.begin) return to_string(s);
    if (const Loop* loop = std::get_if<Loop>(&s.node))
      if (std::string text = text_at(loop->body, at); !text.empty()) return text;
  }
  return "";
}

std::optional<Translation::Split> Translation::split_of(const Variable& v) const {
  std::optional<Split> best;
  int64_t least = std::numeric_limits<int64_t>::max();
  const int64_t block = by_warpgroups() ? 64 : 16, all = by_warpgroups() ? k_.warps / 4 : k_.warps;
  for (int64_t rows = all; rows > 0; rows = by_rows_ ? 0 : rows - 1) {
    const int64_t columns = all / rows;
    if (rows * columns != all || v.rows % (block * rows) || v.cols % (block * columns)) continue;
    const int64_t reads = v.rows / rows + v.cols / columns;
    if (reads < least) least = reads, best = {rows, columns};
  }
  return best;
}

std::string Translation::mma(const Variable& v) const {
  if (by_rows_) return is_result(v) ? "mma_result" : "mma";
  const auto label = [](const std::string& of, int64_t value) {
    const std::string constant = extent(of, value);
    return constant[0] == 'k' ? constant.substr(1) : constant;
  };
  if (v.shape.size() == 2)
    return fmt::format("mma_{}_{}", label(v.shape[0], v.rows), label(v.shape[1], v.cols));
  for (const Step& step : k_.visit)
    if (step.b >= 0 && &var(step.b) == &v && var(step.a).shape.size() == 2) return mma(var(step.a));
  return "";
}

const char* Translation::element() const {
  return e4m3() ? "float_e4m3_t" : k_.dtype == Dtype::bf16 ? "bfloat16_t" : "half_t";
}

bool Translation::is_result(const Variable& v) const {
  return e4m3() && std::ranges::any_of(k_.visit, [&](const Step& s) {
           return s.kind == Step::Kind::compute && s.operation == Operation::gemm &&
                  var(s.a).memory == Memory::registers && &var(s.out) == &v;
         });
}

std::map<std::string, Translation::Split> Translation::products() const {
  std::map<std::string, Split> all;
  for (const Variable& v : k_.variables)
    if (v.memory == Memory::registers && v.shape.size() == 2)
      all.emplace(mma(v), split_of(v).value());
  return all;
}

const Step* Translation::product_by(int tile) const {
  const auto found = std::ranges::find_if(k_.visit, [&](const Step& s) {
    return s.kind == Step::Kind::compute && s.operation == Operation::gemm && s.b == tile &&
           is_masked(s.a);
  });
  return found == k_.visit.end() ? nullptr : &*found;
}

const Step* Translation::last_product() const {
  const auto found = std::find_if(k_.visit.rbegin(), k_.visit.rend(), [](const Step& s) {
    return s.kind == Step::Kind::compute && s.operation == Operation::gemm;
  });
  return found == k_.visit.rend() ? nullptr : &*found;
}

void Translation::find_masked() {
  masked_.assign(k_.variables.size(), false);
  for (bool grows = true; grows;) {
    grows = false;
    for (const Step& s : k_.visit) {
      const bool product = s.operation == Operation::gemm;
      const bool makes = s.kind == Step::Kind::move || (s.kind == Step::Kind::compute && !product);
      if (!makes || s.out < 0 || is_masked(s.out)) continue;
      const bool masks = s.kind == Step::Kind::compute && s.operation == Operation::mask;
      if (!masks && !is_masked(s.a) && !is_masked(s.b)) continue;
      masked_[s.out] = grows = true;
    }
  }
}

std::vector<int> Translation::partial_sums() const {
  std::vector<int> sums;
  for (const Step& step : k_.visit)
    if (step.kind == Step::Kind::compute && step.operation == Operation::softmax && step.c >= 0)
      sums.push_back(step.c);
  return sums;
}

const Step* Translation::folded() const {
  const auto is = [](const Step& s, Operation operation) {
    return s.kind == Step::Kind::compute && s.operation == operation;
  };
  for (auto step = k_.visit.begin(); step != k_.visit.end(); ++step) {
    if (!is(*step, Operation::multiply) || !step->by_scale || step->out != step->a) continue;
    auto next = std::next(step);
    if (next != k_.visit.end() && is(*next, Operation::mask) && next->out == step->out) ++next;
    if (next == k_.visit.end() || !is(*next, Operation::softmax) || next->a != step->out) continue;
    const bool read_again = std::any_of(std::next(next), k_.visit.end(), [&](const Step& s) {
      return s.a == step->out || s.b == step->out;
    });
    if (next->c >= 0 ? next->out == step->out : !read_again) return &*step;
  }
  return nullptr;
}

void Translation::refuse(Span at, const char* what, const char* nearest) const {
  throw Error(ErrorCode::unsupported, kEmit,
              fmt::format("{} is not translated for {} yet", what, k_.target),
              {"program", text_at(at), nearest, nearest});
}

void Translation::refuse_what_scales_miss() const {
  for (const Step& step : k_.before)
    if (step.kind == Step::Kind::compute && is_result(var(step.out)) && step.number != 0)
      refuse(step.at, "a result of e4m3 that does not start at 0", "Compute Fill .. with 0");
  for (auto step = k_.visit.begin(); step != k_.visit.end(); ++step) {
    if (step->kind != Step::Kind::compute) continue;
    if (step->operation != Operation::gemm) {
      if (is_result(var(step->out)) || (step->a >= 0 && is_result(var(step->a))))
        refuse(step->at, "a Compute on a result of e4m3 in the loop", "one behind it");
      continue;
    }
    if (step->a_transposed || is_result(var(step->out)) == step->b_transposed)
      refuse(step->at, "a factor of e4m3 whose rows lie across the sum", "Q, K^T");
    const auto next = std::next(step);
    const bool is_scaled = next != k_.visit.end() && next->kind == Step::Kind::compute &&
                           next->operation == Operation::multiply && next->by_scale &&
                           next->a == step->out && next->out == step->out && !step->accumulate;
    if (!is_result(var(step->out)) && !is_scaled)
      refuse(step->at, "a product of e4m3 that is not multiplied by scale next",
             "Compute Multiply .., scale and get new ..");
    if (is_result(var(step->out)) && !step->accumulate)
      refuse(step->at, "a result of e4m3 that is not summed", "and accumulate");
  }
}

void Translation::refuse_what_warpgroups_miss() const {
  for (const int64_t head_dim : {k_.head_dim, k_.head_dim_v})
    if (head_dim != 64 && head_dim != 128)
      refuse({}, "a backward of other head dims than 64 and 128", "--head-dim 128");
  constexpr int64_t kSpan = 64, kMostRows = 256;  // of a swizzle and of a TMA box
  for (const Variable& v : k_.variables)
    if (v.shape.size() == 2 && (v.rows % kSpan != 0 || v.cols % kSpan != 0 || v.rows > kMostRows))
      refuse(v.at, "a tile whose sides are no multiples of 64 up to 256", "tiles of 64 and 128");
  if (shared_bytes(k_) + 1024 > find_target(k_.target).shared_bytes)
    refuse(k_.visit.front().at, "tiles that leave no 1 KiB of shared memory", "fewer stages");
  std::vector<const Tensor*> copied;
  for (const std::vector<Step>* steps : {&k_.before, &k_.visit})
    for (const Step& load : *steps) {
      if (load.kind != Step::Kind::load || !load.tensor->columns) continue;
      const auto waits = [&](const Step& s) {
        return s.kind == Step::Kind::wait && s.a == load.out;
      };
      if (std::ranges::count_if(k_.before, waits) != (steps == &k_.before) ||
          std::ranges::count_if(k_.visit, waits) != (steps == &k_.visit))
        refuse(load.at, "a Copy without one Wait, on its side of the loop",
               "one Wait for each Copy");
      if (std::ranges::count(copied, load.tensor) > 0)
        refuse(load.at, "a second Copy of a tensor", "one");
      copied.push_back(load.tensor);
    }
}

void Translation::refuse_what_is_missing() const {
  if (!last_product() || !first_of(k_.visit, Step::Kind::wait))
    refuse({}, "a loop without a Copy of a tile and a product", "one that has both");
  if (e4m3()) refuse_what_scales_miss();
  if (by_warpgroups()) refuse_what_warpgroups_miss();
  for (const Step& step : k_.after)
    if (step.kind == Step::Kind::store && !e4m3() &&
        var(step.a).rows * var(step.a).cols * 2 > shared_bytes(k_) - kPlaceBytes)
      refuse(step.at, "a result that is larger than all tiles in shared memory",
             "larger tiles of keys");
  for (const Variable& v : k_.variables)
    if (v.rows % 16 != 0 || (v.shape.size() == 2 && v.cols % 16 != 0))
      refuse(v.at, "a tile whose sides are no multiples of 16", "multiples of 16");
  for (const Variable& v : k_.variables) {
    if (v.memory != Memory::registers) continue;
    if (v.shape.size() == 2 && !split_of(v))
      refuse(v.at,
             by_warpgroups() ? "a tile that warpgroups cannot share in blocks of 64 x 64"
                             : "a tile that the warps cannot share in blocks of 16 x 16",
             "fewer warps");
    if (mma(v).empty()) refuse(v.at, "one number a row of no tile", "numbers of a tile's rows");
  }
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
      if (step.kind == Step::Kind::wait && steps == &k_.after && background() &&
          find_target(k_.target).mma.warps == 1)  // where copies are counted
        refuse(step.at, "a Wait behind the loop", "one in front of it or inside");
      if (step.kind == Step::Kind::reduce && steps == &k_.visit && step.tensor->kept(k_.pass))
        refuse(step.at, "a sum of the chain's own tile in the loop", "Reduce behind it");
    }
}

}  // namespace verbatim::tl
