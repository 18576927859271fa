#include "backend/cuda/sm80/fwd/fwd.h"

#include "backend/cuda/sm80/dispatch.h"
#include "backend/cuda/sm80/fwd/config.h"
#include "contract/contract.h"

namespace verbatim::cuda::sm80 {
namespace {

/// Calls f(config) with the Config of a problem and query tile that lacks() has let pass.
template <class F>
decltype(auto) with_config(Dtype dtype, int64_t head_dim, int64_t head_dim_v, int64_t tile_q,
                           F&& f) {
  return dispatch(dtype, head_dim, head_dim_v, [&](auto element, auto dim, auto dim_v) {
    using Element = decltype(element);
    if constexpr (dim() <= 64) {
      if (tile_q > 128) return f(std::type_identity<Forward<Element, dim(), dim_v(), 192>>{});
    }
    if (tile_q > 64) return f(std::type_identity<Forward<Element, dim(), dim_v(), 128>>{});
    return f(std::type_identity<Forward<Element, dim(), dim_v(), 64>>{});
  });
}

static_assert(contract::tile(Pass::forward, 64, 64).q == 192 &&
              contract::tile(Pass::forward, 128, 128).q == 128 &&
              contract::tile(Pass::forward, 192, 128).q == 128 &&
              contract::tile(Pass::forward, 256, 256).q == 64);  // each has an instance

std::string lacks_here(const Problem& problem, const TileShape& tile) {
  if (std::string missing = lacks(problem); !missing.empty()) return missing;
  const bool narrow = std::max(problem.head_dim, problem.head_dim_v) <= 64;
  if (tile.q <= (narrow ? 192 : 128)) return "";
  return narrow ? "query tiles of at most 192 rows" : "query tiles of at most 128 rows";
}

int64_t shared_bytes(const Problem& p, const TileShape& tile) {
  return with_config(p.dtype, p.head_dim, p.head_dim_v, tile.q, [](auto config) {
    return static_cast<int64_t>(sizeof(typename decltype(config)::type::SharedStorage));
  });
}

int64_t workspace_bytes(const Problem& problem, const PlanExtent& extent) {
  return extent.tile_sums > 0 ? ForwardWorkspace::of(sizes_of(problem)).end * int64_t{sizeof(float)}
                              : 0;
}

void launch(const ForwardParams& params, const LaunchContext& context) {
  const Sizes& s = params.sizes;
  with_config(context.dtype, s.head_dim, s.head_dim_v, context.tile.q, [&](auto config) {
    launch_forward<typename decltype(config)::type>(params, context);
  });
}

}  // namespace

Kernel forward_kernel() {
  return {.name = "sm80.forward",
          .summary = "bf16, f16; head dims that are multiples of 8 up to 256",
          .arch = 80,
          .family = 1000,
          .pass = Pass::forward,
          .arithmetic = contract::kSm80,
          .lacks = lacks_here,
          .shared_bytes = shared_bytes,
          .workspace_bytes = workspace_bytes,
          .forward = launch,
          .backward = nullptr};
}

}  // namespace verbatim::cuda::sm80
