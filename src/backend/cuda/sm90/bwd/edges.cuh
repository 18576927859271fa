// The kernels before and after the main one: the statistics of every row, and, for a backward
// without order, dQ from its sum.
#pragma once

#include "backend/cuda/device/hand_off.cuh"
#include "backend/cuda/device/score.cuh"
#include "backend/cuda/sm90/bwd/config.h"
#include "backend/cuda/sm90/bwd/dq.cuh"
#include "backend/cuda/sm90/bwd/params.h"

namespace verbatim::cuda::sm90::bwd {

/// The query tile that a CTA of the edge kernels works on: one CTA for each row tile.
struct RowTile {
  int32_t b, q_head, q_tile;
  int32_t at, rows;  // where it begins in the tensors; rows 0: not there, or a piece leaves it
  int64_t index;     // of the row tile
  const OrderView* order;

  __device__ explicit RowTile(const BackwardParams& p) {
    index = blockIdx.x;
    const int32_t batch_q_head = static_cast<int32_t>(blockIdx.x) / p.hand_off.max_q_tiles;
    q_tile = static_cast<int32_t>(blockIdx.x) % p.hand_off.max_q_tiles;
    b = batch_q_head / p.sizes.q_heads;
    q_head = batch_q_head % p.sizes.q_heads;
    const int32_t head = b * p.plan.kv_heads + q_head / p.plan.group;
    order = &p.plan.orders[p.plan.order_of_head[head]];
    at = rows = 0;
    if (q_tile < order->q_tiles && order->q_rows[q_tile] >= 0 && p.hand_off.row_turn[index] >= 0) {
      at = static_cast<int32_t>(order->q_rows[q_tile]);
      rows = static_cast<int32_t>(order->q_edges[q_tile + 1] - order->q_edges[q_tile]);
    }
  }
};

constexpr int kEdgeThreads = 256;

/// The statistics of every row, LSE and delta = rowsum(dO * O), as Config::Stat holds them: rows
/// behind those that the mask shows and rows without a key are hidden, so that their P is 0. dQ = 0
/// where no addend will come.
template <class C>
__global__ void __launch_bounds__(kEdgeThreads)
    prepare(BackwardParams p, Workspace workspace, float unit) {
  using Element = typename C::Element;
  constexpr int kLanes = C::kHeadDimV / 8;  // 16 bytes of O and dO each
  const RowTile tile(p);
  if (tile.rows == 0) return;
  __shared__ float delta[C::kTileQ];
  const int mine = threadIdx.x;  // the row whose statistics this thread writes
  float lse = -INFINITY;
  const int used = tile.order->q_used[tile.q_tile];
  if (mine < used) lse = p.lse[p.sizes.row_index(tile.b, tile.q_head, tile.at + mine)];
  const int lane = threadIdx.x % kLanes;
  // Of which this lane has a part: padded head dims are equal, so of dQ, too.
  const int rows = 8 * lane < p.sizes.head_dim_v ? tile.rows : 0;
  const bool any = tile.order->row_addends[tile.q_tile] > 0;
#pragma unroll
  for (int r = threadIdx.x / kLanes; r < C::kTileQ; r += kEdgeThreads / kLanes) {
    float sum = 0;
    if (r < rows) {
      const int64_t row = tile.at + r;
      const auto load = [&](const TensorRef& tensor) {
        return *reinterpret_cast<const uint4*>(
            tensor.template at<const Element>(tile.b, row, tile.q_head) + 8 * lane);
      };
      const uint4 o = load(p.o), dout = load(p.dout);
      if (!any) {
        auto* dq = reinterpret_cast<uint4*>(p.dq.template at<Element>(tile.b, row, tile.q_head));
        for (int i = lane; i < C::kHeadDim / 8; i += kLanes) dq[i] = make_uint4(0, 0, 0, 0);
      }
      const auto* po = reinterpret_cast<const Element*>(&o);
      const auto* pd = reinterpret_cast<const Element*>(&dout);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        sum = fmaf(static_cast<float>(po[i]), static_cast<float>(pd[i]), sum);
      }
    }
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) {
      sum += __shfl_xor_sync(~0u, sum, step);
    }
    if (lane == 0) delta[r] = sum;
  }
  __syncthreads();
  if (mine >= C::kTileQ) return;
  auto* stats = static_cast<typename C::Stat*>(workspace.stats) + tile.index * C::kTileQ;
  if constexpr (C::kExtras) {
    const bool hidden = lse == -INFINITY;  // whatever its dO holds
    stats[mine] = {hidden ? INFINITY : lse * kLog2e, hidden ? 0 : delta[mine]};
  } else {
    stats[mine] = StatCode<Element>::encode(lse, delta[mine], p.scalars.scale, unit);
  }
}

/// dQ = scale * dq_sum in the storage type, where nobody knows which addend was the last. Of a
/// launch that was given up it stays NaN.
template <class C>
__global__ void __launch_bounds__(kEdgeThreads) convert(BackwardParams p, Workspace workspace) {
  using Element = typename C::Element;
  const RowTile tile(p);
  if (tile.rows == 0 || *p.hand_off.aborted != 0) return;
  const int half = threadIdx.x / 128;
  const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  const auto* sum = reinterpret_cast<const float4*>(workspace.dq_sum + tile.index * C::kDqFloats) +
                    half * (C::kDqFloats / 8) + threadIdx.x % 128;
  const int first_row = C::dq_row(half);
  store_dq_rows<C>(
      half, [&](int i) { return __ldcs(sum + 128 * i); }, p.scalars.scale,
      p.dq.template at<Element>(tile.b, tile.at + first_row, tile.q_head), p.dq.row, row,
      tile.rows - first_row, p.sizes.head_dim);
}

}  // namespace verbatim::cuda::sm90::bwd
