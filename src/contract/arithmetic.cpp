#include <fmt/format.h>

#include <array>
#include <cmath>

#include "contract/head_dims.h"
#include "verbatim/error.h"

namespace verbatim {

const int32_t kContractVersion = 13;

namespace {

constexpr std::array kInfos{
    ArithmeticInfo{contract::kCpu, "cpu",
                   "fixed lanes and explicit fused multiply-adds, whatever the instruction set"},
    ArithmeticInfo{contract::kSm80, "sm80", "mma.sync, the portable CUDA kernels"},
    ArithmeticInfo{
        contract::kSm90, "sm90",
        "wgmma, the Hopper kernels: bf16 and f16, equal head dims that are multiples of 8 up to "
        "128, and 192 with 128 of V, whose backward has no softcap and no dropout"}};

/// Whether the Hopper kernels have instances for its head dims, softcap and dropout.
bool has_instances(Pass pass, const Problem& problem) {
  const int64_t head_dim = contract::sm90_head_dims(problem.head_dim, problem.head_dim_v).qk;
  const bool plain = problem.softcap == 0 && problem.dropout == 0;
  return head_dim > 0 && (head_dim <= 128 || pass == Pass::forward || plain);
}

/// Whether the Hopper kernels run it: known from names and sizes alone.
bool suits_sm90(Pass pass, const Problem& problem, TileShape tile, std::string_view order) {
  if (problem.dtype == Dtype::f32 || !has_instances(pass, problem) ||
      tile != contract::tile(pass, problem)) {
    return false;
  }
  const double scale = problem.softmax_scale();
  if (pass == Pass::backward) return std::abs(scale) >= contract::kLeastSm90Scale;
  return scale > 0 && order.find('/') == std::string_view::npos;  // split rows are not merged
}

}  // namespace

std::span<const ArithmeticInfo> arithmetics() { return kInfos; }

std::string arithmetic_of(std::string_view family, Pass pass, const Problem& problem,
                          TileShape tile, std::string_view order) {
  if (family == "cpu") return contract::kCpu;
  if (family == "sm80") return contract::kSm80;
  if (family == "sm90")
    return suits_sm90(pass, problem, tile, order) ? contract::kSm90 : contract::kSm80;
  for (const char* tl : {contract::kInterpretedTl, contract::kTranslatedTl})
    if (family.starts_with(tl)) return std::string(family);
  throw Error(ErrorCode::invalid_argument, "contract", "there is no such arithmetic",
              {"arithmetic", std::string(family), "cpu, sm80 or sm90", "sm80"});
}

}  // namespace verbatim
