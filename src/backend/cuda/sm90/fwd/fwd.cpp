#include "backend/cuda/sm90/fwd/fwd.h"

#include <algorithm>
#include <numbers>

#include "backend/cuda/sm90/fwd/launch.h"
#include "backend/cuda/sm90/tensor_map.h"
#include "backend/cuda/status.h"
#include "contract/head_dims.h"

namespace verbatim::cuda::sm90 {
namespace {

using namespace fwd;

// Where less is left of the visits, CTAs of 64 rows are faster, of one query head or of two
// (docs/lab/block-sparse.md).
constexpr double kFewShown = 0.56, kFewShownOfTwo = 0.75;

/// Whether a KV tile has a half that can be left out.
constexpr bool has_halves(const TileShape& tile) { return tile.kv > kHalfKeys; }

/// The instances of a head dim of Q and K, [f16 or bf16][a Variant].
struct Instance {
  int64_t head_dim;
  bool two_heads;  // at head dim 64 loads are not what CTAs of one head wait for
  int64_t (*shared_bytes)();
  cudaError_t (*launch[2][5])(const Params&, int32_t multiprocessors, cudaStream_t);
};

template <int kDim, int kDimV>
constexpr Instance instance() {
  using enum Variant;
  constexpr bool kCut = has_halves(contract::tile(Pass::forward, kDim, kDimV));
  constexpr Variant kHalves = kCut ? halves : plain, kBlocks = kCut ? blocks : plain;
  constexpr bool kHasTwoHeads = kCut && kDim > 64;
  constexpr Variant kTwoHeads = kHasTwoHeads ? two_heads : kBlocks;
  return {kDim,
          kHasTwoHeads,
          shared_bytes<kDim, kDimV, Dtype::f16, extras>,
          {{launch<kDim, kDimV, Dtype::f16, plain>, launch<kDim, kDimV, Dtype::f16, extras>,
            launch<kDim, kDimV, Dtype::f16, kHalves>, launch<kDim, kDimV, Dtype::f16, kBlocks>,
            launch<kDim, kDimV, Dtype::f16, kTwoHeads>},
           {launch<kDim, kDimV, Dtype::bf16, plain>, launch<kDim, kDimV, Dtype::bf16, extras>,
            launch<kDim, kDimV, Dtype::bf16, kHalves>, launch<kDim, kDimV, Dtype::bf16, kBlocks>,
            launch<kDim, kDimV, Dtype::bf16, kTwoHeads>}}};
}

constexpr Instance kInstances[] = {instance<64, 64>(), instance<128, 128>(), instance<192, 128>()};

/// The instances that run head dims; null: there are none.
const Instance* find_instance(int64_t head_dim, int64_t head_dim_v) {
  const auto found = std::ranges::find_if(kInstances, [&](const Instance& instance) {
    return instance.head_dim == contract::sm90_head_dims(head_dim, head_dim_v).qk;
  });
  return found == std::end(kInstances) ? nullptr : found;
}

Variant variant_for(const Instance& instance, const Scalars& scalars,
                    const LaunchContext& context) {
  if (scalars.softcap != 0 || scalars.dropout.enabled()) return Variant::extras;
  if (context.shown_by_blocks == 1 || !has_halves(context.tile)) return Variant::plain;
  const bool two_heads = instance.two_heads && context.heads_in_pairs;
  const double few = two_heads ? kFewShownOfTwo : kFewShown;
  if (context.shown_by_blocks >= few) return Variant::halves;
  return two_heads ? Variant::two_heads : Variant::blocks;
}

std::string lacks(const Problem& problem, const TileShape& tile) {
  if (problem.dtype != Dtype::bf16 && problem.dtype != Dtype::f16) return "dtype bf16 or f16";
  if (!find_instance(problem.head_dim, problem.head_dim_v)) return contract::kSm90HeadDims;
  if (problem.softmax_scale() <= 0) return "a positive softmax scale";
  const TileShape compiled = contract::tile(Pass::forward, problem);
  return tile == compiled ? std::string{} : tiles_of(compiled);
}

int64_t shared_bytes_of(const Problem& problem, const TileShape&) {
  return find_instance(problem.head_dim, problem.head_dim_v)->shared_bytes();
}

int64_t no_workspace(const Problem&, const PlanExtent&) { return 0; }

void forward(const ForwardParams& params, const LaunchContext& context) {
  constexpr const char* kOperation = "cuda.sm90.forward";
  const Sizes& sizes = params.sizes;
  const Scalars& scalars = params.scalars;
  if (context.tile_sums > 0) {
    throw Error(ErrorCode::unsupported, kOperation, "partial results of split rows are not merged",
                {.argument = "order",
                 .got = "a split order",
                 .expected = "one chain for every query tile",
                 .nearest = "the same order without \"/split\""});
  }
  const bool bf16 = context.dtype == Dtype::bf16;
  const auto map = [&](const TensorRef& tensor, int64_t length, int64_t heads, int64_t dim,
                       int64_t rows) {
    if (length == 0) return CUtensorMap{};  // nothing is ever loaded through it
    return make_tensor_map(tensor, bf16, sizes.batch, length, heads, dim,
                           static_cast<int32_t>(rows));
  };
  constexpr float kLog2e = std::numbers::log2e_v<float>;
  const bool capped = scalars.softcap != 0;
  if (params.plan.unit_count == 0) return;
  const Instance& instance = *find_instance(sizes.head_dim, sizes.head_dim_v);
  const Variant variant = variant_for(instance, scalars, context);
  const bool rows_alone = is_by_blocks(variant);
  const int64_t box_rows = rows_alone ? kRows : context.tile.q;
  const int64_t box_keys = rows_alone || variant == Variant::halves ? kHalfKeys : context.tile.kv;
  const Params args{
      .map_q = map(params.q, sizes.q_len, sizes.q_heads, sizes.head_dim, box_rows),
      .map_k = map(params.k, sizes.kv_len, sizes.kv_heads, sizes.head_dim, box_keys),
      .map_v = map(params.v, sizes.kv_len, sizes.kv_heads, sizes.head_dim_v, box_keys),
      .map_o = map(params.o, sizes.q_len, sizes.q_heads, sizes.head_dim_v, kWarpRows),
      .plan = params.plan,
      .ticket = params.hand_off.ticket,
      .o = params.o,
      .lse = params.lse,
      .sizes = sizes,
      .scale_log2 = capped ? scalars.softcap * kLog2e : scalars.scale_log2,
      .softcap_log2 = capped ? 2 * kLog2e * scalars.scale / scalars.softcap : 0,
      .dropout = scalars.dropout,
  };
  const auto start = instance.launch[bf16][static_cast<size_t>(variant)];
  check(start(args, context.multiprocessors, context.stream), kOperation);
}

}  // namespace

Kernel forward_kernel() {
  return {.name = "sm90.forward",
          .summary = "TMA and wgmma, warpgroups in turns; head dims by 8 to 128, 192 with 128",
          .arch = 90,
          .family = 100,
          .pass = Pass::forward,
          .arithmetic = contract::kSm90,
          .lacks = lacks,
          .shared_bytes = shared_bytes_of,
          .workspace_bytes = no_workspace,
          .forward = forward,
          .backward = nullptr};
}

}  // namespace verbatim::cuda::sm90
