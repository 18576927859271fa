#include "backend/cuda/sm90/bwd/bwd.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "backend/cuda/sm90/bwd/launch.h"
#include "backend/cuda/sm90/tensor_map.h"
#include "backend/cuda/status.h"
#include "contract/head_dims.h"

namespace verbatim::cuda::sm90 {
namespace {

using namespace bwd;

constexpr const char* kOperation = "cuda.sm90.backward";
constexpr int64_t kMostEntries = 65536;  // fields of a Visit have 16 bits

int64_t padded_head_dim(const Problem& problem) {
  return contract::sm90_head_dims(problem.head_dim, problem.head_dim_v).qk;
}

/// Floats and counters of a Workspace, one behind the other.
struct Extent {
  int64_t dq_sum, stats, dk_sum, apart, key_turns, end;  // offsets in 4-byte words

  /// `head_dim`: the instance's; `both_dims`: the problem's. `sum_tiles`: row tiles of the heads
  /// that have a place for their sums.
  Extent(int64_t head_dim, int64_t both_dims, const TileShape& tile, int64_t sum_tiles,
         int64_t row_tiles, int64_t key_tiles, int32_t tile_sums) {
    dq_sum = 0;
    stats = dq_sum + sum_tiles * tile.q * head_dim;
    dk_sum = stats + row_tiles * tile.q * kStatBytes / 4;
    apart = dk_sum + (tile_sums > 0 ? key_tiles * tile.kv * head_dim : 0);
    key_turns = apart + (tile_sums > 1 ? key_tiles * tile.kv * both_dims : 0);
    end = key_turns + (tile_sums > 0 ? 2 * key_tiles : 0);
  }
};

/// A power of two of at least 1 / scale, as far as the weights of the statistics can be.
float lse_unit(float scale) {
  return std::clamp(std::exp2(std::ceil(-std::log2(std::abs(scale)))), 1.0f, 32.0f);
}

Softcap softcap_of(const Scalars& scalars) {
  if (scalars.softcap == 0) return {};
  const float cap = scalars.softcap * std::numbers::log2e_v<float>;
  return {.argument = 2 * std::numbers::log2e_v<float> * scalars.scale / scalars.softcap,
          .cap = cap,
          .inverse = 1 / cap};
}

using Launch = cudaError_t (*)(const Params&, int32_t blocks, bool together, cudaStream_t);

template <int kHeadDim, Variant kVariant>
constexpr Launch kOf[] = {launch<kHeadDim, Dtype::f16, kVariant, NoRecorder>,
                          launch<kHeadDim, Dtype::bf16, kVariant, NoRecorder>};

/// The compiled instance; of those that record there is one a head dim.
template <int kHeadDim>
Launch instance(bool bf16, Variant variant, bool recorded) {
  if (recorded) return launch<kHeadDim, Dtype::bf16, Variant::plain, Recorder>;
  if (variant == Variant::extras) return kOf<kHeadDim, Variant::extras>[bf16];
  return variant == Variant::halves ? kOf<kHeadDim, Variant::halves>[bf16]
                                    : kOf<kHeadDim, Variant::plain>[bf16];
}

/// Of head dims 192 and 128, without variants.
Launch wide_instance(bool bf16, bool recorded) {
  return recorded ? launch<192, Dtype::bf16, Variant::plain, Recorder>
                  : kOf<192, Variant::plain>[bf16];
}

bool records(const Problem& problem) {
  return problem.dtype == Dtype::bf16 && problem.softcap == 0 && problem.dropout == 0;
}

std::string lacks(const Problem& problem, const TileShape& tile) {
  if (problem.dtype != Dtype::bf16 && problem.dtype != Dtype::f16) return "dtype bf16 or f16";
  const int64_t head_dim = padded_head_dim(problem);
  if (head_dim == 0) return contract::kSm90HeadDims;
  if (head_dim == 192 && (problem.softcap != 0 || problem.dropout != 0))
    return "head dims up to 128 for softcap and dropout";
  if (std::abs(problem.softmax_scale()) < contract::kLeastSm90Scale)
    return "a softmax scale of at least 1e-6";
  const TileShape own = contract::tile(Pass::backward, problem);
  if (tile != own) return tiles_of(own);
  return {};
}

/// Of the plain instance: with softcap and dropout it is no more.
int64_t shared_bytes_of(const Problem& problem, const TileShape&) {
  const int64_t head_dim = padded_head_dim(problem);
  if (head_dim == 64) return shared_bytes<64, Dtype::bf16, Variant::plain>();
  return head_dim == 128 ? shared_bytes<128, Dtype::bf16, Variant::plain>()
                         : shared_bytes<192, Dtype::bf16, Variant::plain>();
}

int64_t dq_sum_floats(const Problem& problem, int32_t q_tiles) {
  return int64_t{q_tiles} * contract::tile(Pass::backward, problem).q * padded_head_dim(problem);
}

int64_t workspace_bytes(const Problem& problem, const PlanExtent& plan) {
  const int64_t heads = int64_t{plan.live_heads.heads} * plan.live_heads.queries;
  return Extent(padded_head_dim(problem), problem.head_dim + problem.head_dim_v,
                contract::tile(Pass::backward, problem), plan.piece ? 0 : heads * plan.max_q_tiles,
                problem.batch * problem.q_heads * plan.max_q_tiles,
                problem.batch * problem.kv_heads * plan.max_kv_tiles, plan.tile_sums)
             .end *
         int64_t{sizeof(float)};
}

void backward(const BackwardParams& common, const LaunchContext& context) {
  const Sizes& sizes = common.sizes;
  const int32_t blocks = std::min(context.multiprocessors, common.plan.unit_count);
  if (blocks > 0) check_residency(context.residency, blocks, kOperation);  // each fills an SM
  const bool bf16 = context.dtype == Dtype::bf16;
  const auto map = [&](const TensorRef& tensor, int64_t length, int64_t heads, int64_t head_dim,
                       int64_t rows) {
    if (length == 0) return CUtensorMap{};  // nothing is ever loaded through it
    return make_tensor_map(tensor, bf16, sizes.batch, length, heads, head_dim,
                           static_cast<int32_t>(rows));
  };
  const int64_t head_tiles = int64_t{common.plan.group} * common.hand_off.max_q_tiles;
  const int64_t heads = int64_t{sizes.batch} * sizes.kv_heads;
  const LiveHeads live = context.live_heads;
  const bool piece = common.carried.blocks != nullptr;
  const int64_t live_tiles = int64_t{live.heads} * live.queries * common.hand_off.max_q_tiles;
  const int64_t head_dim = contract::sm90_head_dims(sizes.head_dim, sizes.head_dim_v).qk;
  const Extent at(head_dim, sizes.head_dim + sizes.head_dim_v, context.tile, piece ? 0 : live_tiles,
                  heads * head_tiles, heads * common.hand_off.max_kv_tiles, context.tile_sums);
  auto* words = static_cast<float*>(common.workspace);
  const Scalars& scalars = common.scalars;
  const Params params{
      .map_q = map(common.q, sizes.q_len, sizes.q_heads, sizes.head_dim, context.tile.q),
      .map_dout = map(common.dout, sizes.q_len, sizes.q_heads, sizes.head_dim_v, context.tile.q),
      .map_k = map(common.k, sizes.kv_len, sizes.kv_heads, sizes.head_dim, context.tile.kv),
      .map_v = map(common.v, sizes.kv_len, sizes.kv_heads, sizes.head_dim_v, context.tile.kv),
      .common = common,
      .workspace = {.stats = words + at.stats,
                    .dq_sum = piece ? common.carried.dq : words + at.dq_sum,
                    .dk_sum = reinterpret_cast<float4*>(words + at.dk_sum),
                    .apart = words + at.apart,
                    .key_turns = reinterpret_cast<int32_t*>(words + at.key_turns)},
      .unit = lse_unit(scalars.scale),
      .live_heads = live.heads,
      .live_queries = live.queries,
      .together = context.ordered ? context.residency : 1,
      .shares_sums = live.heads < heads || live.queries < common.plan.group,
      .ordered = context.ordered,
      .record = context.record,
      .softcap = softcap_of(scalars),
  };
  if (context.tile_sums > 0) {
    check(cudaMemsetAsync(words + at.key_turns, 0, (at.end - at.key_turns) * sizeof(float),
                          context.stream),
          kOperation);
  }
  if (!context.ordered) {
    check(cudaMemsetAsync(words, 0, at.stats * sizeof(float), context.stream), kOperation);
  }
  const bool recorded = context.record.records != nullptr;
  const Variant variant = scalars.softcap != 0 || scalars.dropout.enabled() ? Variant::extras
                          : context.shown_by_blocks < 1                     ? Variant::halves
                                                                            : Variant::plain;
  const Launch start = head_dim == 64    ? instance<64>(bf16, variant, recorded)
                       : head_dim == 128 ? instance<128>(bf16, variant, recorded)
                                         : wide_instance(bf16, recorded);
  check(start(params, blocks, context.together, context.stream), kOperation);
}

}  // namespace

Kernel backward_kernel() {
  return {
      .name = "sm90.backward",
      .summary =
          "TMA and wgmma, dQ handed on from tile to tile; head dims by 8 to 128, 192 with 128 of V",
      .arch = 90,
      .family = 100,
      .pass = Pass::backward,
      .arithmetic = contract::kSm90,
      .limits = {.batch = kMostEntries, .q_heads = kMostEntries},
      .lacks = lacks,
      .shared_bytes = shared_bytes_of,
      .workspace_bytes = workspace_bytes,
      .scales_dv = true,
      .dq_sum_floats = dq_sum_floats,
      .records = records,
      .forward = nullptr,
      .backward = backward};
}

}  // namespace verbatim::cuda::sm90
