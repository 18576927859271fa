#include "backend/cuda/sm90/fwd/fwd.h"

#include <algorithm>
#include <numbers>

#include "backend/cuda/sm90/fwd/launch.h"
#include "backend/cuda/sm90/tensor_map.h"
#include "backend/cuda/status.h"
#include "contract/contract.h"

namespace verbatim::cuda::sm90 {
namespace {

using Launch = cudaError_t (*)(const FwdArgs&, int32_t blocks, cudaStream_t);

/// A compiled tile shape and its instances, [f16 or bf16][plain or with softcap and dropout].
struct Instance {
  int64_t head_dim;
  TileShape tile;
  int64_t (*shared_bytes)();
  Launch launch[2][2];
};

template <class Tile>
constexpr Instance instance() {
  return {Tile::head_dim,
          {Tile::tile_q, Tile::tile_kv},
          shared_bytes<Tile, Dtype::f16, true>,
          {{launch<Tile, Dtype::f16, false>, launch<Tile, Dtype::f16, true>},
           {launch<Tile, Dtype::bf16, false>, launch<Tile, Dtype::bf16, true>}}};
}

constexpr Instance kInstances[] = {instance<Hd64>(), instance<Hd128>()};

const Instance* find(int64_t head_dim, const TileShape& tile) {
  for (const Instance& instance : kInstances) {
    if (instance.head_dim == head_dim && instance.tile == tile) return &instance;
  }
  return nullptr;
}

std::string lacks(const Problem& problem, const TileShape& tile) {
  if (problem.dtype == Dtype::f32) return "dtype bf16 or f16";
  if (problem.head_dim != problem.head_dim_v ||
      (problem.head_dim != 64 && problem.head_dim != 128)) {
    return "equal head dims of 64 or 128";
  }
  if (problem.softmax_scale() <= 0) return "a positive softmax scale";
  if (find(problem.head_dim, tile) == nullptr) {
    return tiles_of(contract::tile(Pass::forward, problem.head_dim));
  }
  return {};
}

int64_t shared_bytes_of(const Problem& problem, const TileShape& tile) {
  return find(problem.head_dim, tile)->shared_bytes();
}

int64_t no_workspace(const Problem&, const PlanExtent&) { return 0; }

void forward(const ForwardParams& params, const LaunchContext& context) {
  constexpr const char* kOperation = "cuda.sm90.forward";
  const Sizes& sizes = params.sizes;
  const Scalars& scalars = params.scalars;
  if (context.shared_tiles) {
    throw Error(ErrorCode::unsupported, kOperation, "partial results of split rows are not merged",
                {.argument = "order",
                 .got = "a split order",
                 .expected = "one chain for every query tile",
                 .nearest = "the same order without \"/split\""});
  }
  const bool bf16 = context.dtype == Dtype::bf16;
  const auto map = [&](const TensorRef& tensor, int64_t length, int64_t heads, int64_t rows) {
    if (length == 0) return CUtensorMap{};  // nothing is ever loaded through it
    return make_tensor_map(tensor, bf16, sizes.batch, length, heads, sizes.head_dim,
                           static_cast<int32_t>(rows));
  };
  constexpr float kLog2e = std::numbers::log2e_v<float>;
  const bool capped = scalars.softcap != 0;
  if (params.plan.unit_count == 0) return;
  const FwdArgs args{
      .q_map = map(params.q, sizes.q_len, sizes.q_heads, context.tile.q),
      .k_map = map(params.k, sizes.kv_len, sizes.kv_heads, context.tile.kv),
      .v_map = map(params.v, sizes.kv_len, sizes.kv_heads, context.tile.kv),
      .o_map = map(params.o, sizes.q_len, sizes.q_heads, kWarpRows),
      .plan = params.plan,
      .ticket = params.hand_off.ticket,
      .o = params.o,
      .lse = params.lse,
      .sizes = sizes,
      .scale_log2 = capped ? scalars.softcap * kLog2e : scalars.scale_log2,
      .softcap_log2 = capped ? 2 * kLog2e * scalars.scale / scalars.softcap : 0,
      .dropout = scalars.dropout,
  };
  const Instance& instance = *find(sizes.head_dim, context.tile);
  const bool extras = capped || scalars.dropout.enabled();
  const int32_t blocks = std::min(context.multiprocessors, params.plan.unit_count);
  check(instance.launch[bf16][extras](args, blocks, context.stream), kOperation);
}

}  // namespace

Kernel forward_kernel() {
  return {.name = "sm90.forward",
          .summary = "TMA and wgmma, warpgroups in turns; head dim 64 and 128",
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
