// The launch of one sm90 backward: statistics, the main kernel, and dQ from its sum.
#pragma once

#include "backend/cuda/registry.h"
#include "backend/cuda/sm90/bwd/bwd.h"
#include "backend/cuda/sm90/bwd/edges.cuh"
#include "backend/cuda/sm90/bwd/kernel.cuh"
#include "backend/cuda/sm90/tensor_map.h"
#include "backend/cuda/status.h"

namespace verbatim::cuda::sm90_bwd {

template <class C>
void launch(const BackwardParams& common, const LaunchContext& context) {
  const Sizes& sizes = common.sizes;
  const int64_t row_tiles = int64_t{sizes.batch} * sizes.q_heads * common.hand_off.max_q_tiles;
  if (row_tiles == 0) return;

  Params p;
  constexpr bool kBf16 = std::is_same_v<typename C::Element, cutlass::bfloat16_t>;
  const auto map = [&](const TensorRef& tensor, int64_t length, int64_t heads, int32_t rows) {
    return make_tensor_map(tensor, kBf16, sizes.batch, length, heads, C::kHeadDim, rows);
  };
  p.map_q = map(common.q, sizes.q_len, sizes.q_heads, C::kTileQ);
  p.map_dout = map(common.dout, sizes.q_len, sizes.q_heads, C::kTileQ);
  p.map_k = map(common.k, sizes.kv_len, sizes.kv_heads, C::kTileKv);
  p.map_v = map(common.v, sizes.kv_len, sizes.kv_heads, C::kTileKv);
  p.common = common;
  p.ordered = context.ordered;
  p.workspace.dq_sum = static_cast<float*>(common.workspace);
  p.workspace.stats = p.workspace.dq_sum + row_tiles * C::kDqFloats;
  p.workspace.turns = reinterpret_cast<int32_t*>(p.workspace.stats + row_tiles * 2 * C::kTileQ);

  check(cudaMemsetAsync(p.workspace.turns, 0, row_tiles * 2 * sizeof(int32_t), context.stream),
        "cuda.sm90.backward");
  if (!p.ordered) {
    check(cudaMemsetAsync(p.workspace.dq_sum, 0, row_tiles * C::kDqFloats * sizeof(float),
                          context.stream),
          "cuda.sm90.backward");
  }
  const dim3 edge_grid(common.hand_off.max_q_tiles, sizes.batch * sizes.q_heads);
  prepare<C><<<edge_grid, kEdgeThreads, 0, context.stream>>>(common, p.workspace);
  constexpr int kShared = sizeof(typename C::SharedStorage);
  check(cudaFuncSetAttribute(backward<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared),
        "cuda.sm90.backward");
  const int grid = min(context.multiprocessors, common.plan.unit_count);
  if (grid > 0) backward<C><<<grid, kThreads, kShared, context.stream>>>(p);
  convert<C><<<edge_grid, kEdgeThreads, 0, context.stream>>>(common, p.workspace);
  check(cudaGetLastError(), "cuda.sm90.backward");
}

}  // namespace verbatim::cuda::sm90_bwd
