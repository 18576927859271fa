// What is only known behind the last statement: missing Allocates and results, and what the target
// can hold and do.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "tl/examine.h"

namespace verbatim::tl {
namespace {

constexpr int64_t kKiB = 1024;

std::string kib(int64_t bytes) { return fmt::format("{:.4g} KiB", bytes / double{kKiB}); }

}  // namespace

void Examiner::check_allocations() {
  for (size_t i = 0; i < states_.size(); ++i) {
    Variable& v = kernel_.variables[i];
    if (!v.shape.empty()) {
      v.rows = extent(v.shape[0]);
      v.cols = v.shape.size() == 2 ? extent(v.shape[1]) : 1;
    }
    if (states_[i].allocated || options_.sketch || unknown_.contains(v.name)) continue;
    if (v.shape.empty()) {
      report("shape", v.at, fmt::format("nothing says which shape {} has", v.name),
             fmt::format("Allocate {} in {} (...)", v.name, to_string(v.memory)));
      continue;
    }
    const std::string line =
        fmt::format("Allocate {} in {} {}", v.name, to_string(v.memory), shown(v.shape));
    report("unallocated", v.at,
           fmt::format("{} has no Allocate in {}", v.name, to_string(v.memory)), line,
           header_line(line));
  }
}

void Examiner::check_outputs() {
  for (const Tensor& tensor : tensors()) {
    if (tensor.role(kernel_.pass) != Tensor::Role::out || outputs_.contains(tensor.name)) continue;
    const size_t found = text_.find_last_not_of(" \t\r\n");  // not there when all is blank
    const int64_t last = found == std::string_view::npos ? 0 : static_cast<int64_t>(found);
    report("output", {last, last + 1}, fmt::format("nothing writes {}", tensor.name),
           fmt::format("{} {} from register to global{}",
                       kernel_.pass == Pass::forward ? "Copy" : "Reduce ordered", tensor.name,
                       kernel_.pass == Pass::forward ? "" : " as addend"));
  }
}

/// Every online softmax brings along what the loop accumulates from its result.
void Examiner::collect_rescaled() {
  for (Step& step : kernel_.visit) {
    if (step.operation != Operation::softmax || step.c < 0) continue;
    for (const Step& other : kernel_.visit) {
      if (other.kind != Step::Kind::compute || other.operation != Operation::gemm) continue;
      const bool uses = other.accumulate && other.a == step.out;
      if (uses && std::ranges::find(step.rescaled, other.out) == step.rescaled.end())
        step.rescaled.push_back(other.out);
    }
  }
}

void Examiner::check_target() {
  const Target& target = *target_;
  const Span dtype_at = params_.at("dtype").value->at;
  if (!target.takes(kernel_.dtype))
    return report(
        "dtype", dtype_at,
        fmt::format("matrix instructions of {} take no {}", target.name, to_string(kernel_.dtype)),
        target.takes(Dtype::bf16) ? "bf16" : "f16");
  if (kernel_.dtype == Dtype::e4m3 && kernel_.pass == Pass::backward)
    return report("dtype", dtype_at, "e4m3 is of forwards", "bf16");
  for (const Variable& v : kernel_.variables)
    if (std::max(v.rows, v.cols) > kMostOfATile || std::min(v.rows, v.cols) < 1)
      return report("shape", v.at, fmt::format("{} is {} x {}", v.name, v.rows, v.cols),
                    fmt::format("extents from 1 to {}", kMostOfATile));
  for (const std::vector<Step>* steps : {&kernel_.before, &kernel_.visit, &kernel_.after})
    for (const Step& step : *steps)
      if (step.kind == Step::Kind::compute && step.operation == Operation::gemm)
        check_product(step);
  int64_t bytes = kPlaceBytes;
  for (const Variable& v : kernel_.variables) {
    if (v.memory != Memory::shared) continue;
    bytes += bytes_of(kernel_, v) + turned_bytes(kernel_, v);
    if (bytes <= target.shared_bytes) continue;
    report("shared_memory", v.at,
           fmt::format("with {} the tiles take {} of shared memory, of {} in all", v.name,
                       kib(bytes), kib(shared_bytes(kernel_))),
           fmt::format("at most {} on {}: smaller tiles or fewer stages", kib(target.shared_bytes),
                       target.name));
    break;
  }
  const RegisterUse use = register_use(kernel_, kernel_.warps);
  const int64_t most =
      std::min(target.registers_per_thread, target.registers / (32 * kernel_.warps));
  if (use.per_thread > most)
    report("registers", use.at,
           fmt::format("a thread holds about {} registers here", use.per_thread),
           fmt::format("at most {} with {} warps on {}: smaller tiles, or other warps", most,
                       kernel_.warps, target.name));
}

/// Whether matrix instructions tile the product and its warps share them evenly.
void Examiner::check_product(const Step& step) {
  const Target& target = *target_;
  const Variable &a = kernel_.variables[step.a], &out = kernel_.variables[step.out];
  const int64_t m = out.rows, n = out.cols, k = step.a_transposed ? a.rows : a.cols;
  const auto& mma = target.mma;
  const int64_t depth = target.depth_of(kernel_.dtype);
  if (m % mma.m != 0 || n % mma.n != 0 || k % depth != 0)
    return report("mma", step.at,
                  fmt::format("a product of {} x {} with depth {} is not made of matrix "
                              "instructions of {} x {} x {}",
                              m, n, k, mma.m, mma.n, depth),
                  fmt::format("multiples of {}, {} and {}", mma.m, mma.n, depth));
  // A factor in registers is where the product before left it: rows are not dealt anew.
  const bool by_rows = a.memory == Memory::registers;
  const int64_t parts = by_rows ? m / mma.m : m / mma.m * (n / mma.n);
  if (kernel_.warps % mma.warps != 0 || parts % (kernel_.warps / mma.warps) != 0)
    report("mma", step.at,
           fmt::format("{} warps cannot share {} {} evenly", kernel_.warps, parts,
                       by_rows ? "blocks of rows" : "matrix instructions"),
           fmt::format("warps in groups of {}, a divisor of {}", mma.warps, parts));
}

}  // namespace verbatim::tl
