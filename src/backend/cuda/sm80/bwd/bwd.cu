#include "backend/cuda/sm80/bwd/bwd.h"

#include "backend/cuda/sm80/bwd/config.h"
#include "backend/cuda/sm80/dispatch.h"
#include "contract/contract.h"

namespace verbatim::cuda::sm80 {
namespace {

/// Calls f(config) with the Config of a problem and KV tile that lacks() has let pass.
template <class F>
decltype(auto) with_config(Dtype dtype, int64_t head_dim, int64_t head_dim_v, int64_t tile_kv,
                           F&& f) {
  return dispatch(dtype, head_dim, head_dim_v, [&](auto element, auto dim, auto dim_v) {
    using Element = decltype(element);
    if constexpr (dim() <= 192 && dim_v() <= 128) {
      if (tile_kv > 64) return f(std::type_identity<Backward<Element, dim(), dim_v(), 128>>{});
    }
    return f(std::type_identity<Backward<Element, dim(), dim_v(), 64>>{});
  });
}

static_assert(contract::tile(Pass::backward, 64, 64).kv == 128 &&
              contract::tile(Pass::backward, 128, 128).kv == 128 &&
              contract::tile(Pass::backward, 192, 128).kv == 128 &&
              contract::tile(Pass::backward, 256, 256).kv == 64);  // each has an instance

std::string lacks_here(const Problem& problem, const TileShape& tile) {
  if (std::string missing = lacks(problem); !missing.empty()) return missing;
  const int64_t widest = problem.head_dim <= 192 && problem.head_dim_v <= 128 ? 128 : 64;
  return tile.kv <= widest ? "" : "KV tiles of at most " + std::to_string(widest) + " keys";
}

int64_t shared_bytes(const Problem& p, const TileShape& tile) {
  return with_config(p.dtype, p.head_dim, p.head_dim_v, tile.kv, [](auto config) {
    return static_cast<int64_t>(sizeof(typename decltype(config)::type::SharedStorage));
  });
}

int64_t workspace_bytes(const Problem& problem, const PlanExtent& extent) {
  return BackwardWorkspace::of(sizes_of(problem), extent.tile_sums, extent.piece).end *
         int64_t{sizeof(float)};
}

int64_t dq_sum_floats(const Problem& problem, int32_t) { return problem.q_len * problem.head_dim; }

void launch(const BackwardParams& params, const LaunchContext& context) {
  const Sizes& s = params.sizes;
  with_config(context.dtype, s.head_dim, s.head_dim_v, context.tile.kv, [&](auto config) {
    launch_backward<typename decltype(config)::type>(params, context);
  });
}

}  // namespace

Kernel backward_kernel() {
  return {.name = "sm80.backward",
          .summary = "bf16, f16; head dims that are multiples of 8 up to 256",
          .arch = 80,
          .family = 1000,
          .pass = Pass::backward,
          .arithmetic = contract::kSm80,
          .lacks = lacks_here,
          .shared_bytes = shared_bytes,
          .workspace_bytes = workspace_bytes,
          .dq_sum_floats = dq_sum_floats,
          .forward = nullptr,
          .backward = launch};
}

}  // namespace verbatim::cuda::sm80
