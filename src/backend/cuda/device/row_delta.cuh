// What the backward needs before it starts: delta, and zeros in the rows of dQ that see nothing.
#pragma once

#include "backend/cuda/device/mma.cuh"
#include "backend/cuda/device/params.h"

namespace verbatim::cuda {

/// delta[b, h, q] = sum over the head dim of dO * O. One warp per row, fixed order of additions.
template <class Element>
__global__ __launch_bounds__(256) void row_delta(const __grid_constant__ BackwardParams p) {
  const Sizes& sizes = p.sizes;
  const int64_t row = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;  // [b, l, h]
  if (row >= int64_t{sizes.batch} * sizes.q_heads * sizes.q_len) return;
  const int64_t h = row % sizes.q_heads, l = row / sizes.q_heads % sizes.q_len;
  const int64_t b = row / sizes.q_heads / sizes.q_len;
  const Element* o = p.o.at<const Element>(b, l, h);
  const Element* dout = p.dout.at<const Element>(b, l, h);
  const int lane = threadIdx.x % 32;
  float sum = 0;
  for (int col = lane * 2; col < sizes.head_dim_v; col += 64) {
    sum = fmaf(static_cast<float>(o[col]), static_cast<float>(dout[col]), sum);
    sum = fmaf(static_cast<float>(o[col + 1]), static_cast<float>(dout[col + 1]), sum);
  }
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(~0u, sum, distance);
  }
  if (lane == 0) static_cast<float*>(p.workspace)[sizes.row_index(b, h, l)] = sum;
}

/// dQ = 0 in query tiles without an addend. One CTA per [b, h, tile], tile < max_q_tiles.
template <class Element>
__global__ __launch_bounds__(128) void zero_rows(const __grid_constant__ BackwardParams p) {
  const Sizes& sizes = p.sizes;
  const int32_t tile = blockIdx.x % p.hand_off.max_q_tiles;
  const int64_t b_h = blockIdx.x / p.hand_off.max_q_tiles;
  const int64_t b = b_h / sizes.q_heads, h = b_h % sizes.q_heads;
  const OrderView& order =
      p.plan.orders[p.plan.order_of_head[b * sizes.kv_heads + h / p.plan.group]];
  if (tile >= order.q_tiles || order.row_addends[tile] != 0) return;
  for (int64_t row = order.q_edges[tile]; row < order.q_edges[tile + 1]; ++row) {
    Element* dq = p.dq.at<Element>(b, row, h);
    for (int col = threadIdx.x * 2; col < sizes.head_dim; col += 256) store_pair(dq + col, 0, 0);
  }
}

}  // namespace verbatim::cuda
