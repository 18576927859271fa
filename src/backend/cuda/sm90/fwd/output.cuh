// The end of a chain of the sm90 forward: LSE and O.
#pragma once

#include "backend/cuda/device/result.cuh"
#include "backend/cuda/sm90/fragment.cuh"
#include "backend/cuda/sm90/fwd/config.h"
#include "backend/cuda/sm90/fwd/params.h"
#include "backend/cuda/sm90/fwd/softmax.cuh"

namespace verbatim::cuda::sm90::fwd {

/// Writes the LSE of a query tile's rows `row` and `row` + 8; returns in `factor` what O is still
/// to be multiplied with.
__device__ __forceinline__ void write_lse(const Params& p, const QueryTile& tile,
                                          const OnlineSoftmax& softmax, int32_t row,
                                          float (&factor)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = softmax.row_sum(r);
    factor[r] = sum == 0 ? 0 : __fdividef(p.dropout.scale, sum);
    if (threadIdx.x % 4 == 0 && row + 8 * r < tile.rows) {
      constexpr float kLn2 = 0.693147180559945309f;
      p.lse[p.sizes.row_index(tile.batch, tile.q_head, int64_t{tile.at} + row + 8 * r)] =
          sum == 0 ? -INFINITY : kLn2 * (softmax.base[r] + log2f(sum));
    }
  }
}

/// Writes a warp's 16 rows of O, of which this lane has `row` and `row` + 8; a row without a key is
/// 0, rows behind the tile's are left alone, and columns behind the problem's. They go through
/// `q_tile`, the Q of their chain, which nobody reads any more and which is as wide at least: its
/// slot is free once the copy that this begins has been read.
template <class C, class Acc>
__device__ __forceinline__ void store_output(const Params& p, const QueryTile& tile,
                                             typename C::Element* q_tile, const Acc& o,
                                             const float (&factor)[2], int32_t row) {
  using Element = typename C::Element;
  constexpr int kChunk = 8;  // elements that the swizzle moves as one
  constexpr int kChunks = kSwizzleSpan / kChunk;
  const int lane = threadIdx.x % 32;
  const int32_t first = row - lane / 4;
  const auto chunk_at = [&](int32_t r, int chunk) {  // of row `first` + r
    return q_tile + chunk / kChunks * C::kTileQ * kSwizzleSpan + (first + r) * kSwizzleSpan +
           (chunk % kChunks ^ r % kChunks) * kChunk;
  };
  // Each instruction stores 16 rows of 2 chunks; a lane gives where a row of a chunk is.
#pragma unroll
  for (int chunk = 0; chunk < C::kHeadDimV / kChunk; chunk += 2) {
    const auto word = [&](int i) {
      const float f = factor[i % 2];
      const int at = 4 * chunk + 2 * i;
      return pack<Element>(f == 0 ? 0 : result_of(o(at), f), f == 0 ? 0 : result_of(o(at + 1), f));
    };
    ptx::store_matrices(ptx::smem_address(chunk_at(lane % 16, chunk + lane / 16)), word(0), word(1),
                        word(2), word(3));
  }
  ptx::fence_async_shared();
  __syncwarp();
  // A vote, for ptxas has to know that all lanes agree.
  if (__all_sync(~0u, first + kWarpRows <= tile.rows)) {
    if (lane == 0) {
#pragma unroll
      for (int part = 0; part < C::kHeadDimV / kSwizzleSpan; ++part) {
        SM90_TMA_STORE_4D::copy(&p.map_o, q_tile + (part * C::kTileQ + first) * kSwizzleSpan,
                                part * kSwizzleSpan, tile.at + first, tile.q_head, tile.batch);
      }
      ptx::bulk_commit();
    }
    return;
  }
  constexpr int kPerRow = C::kHeadDimV / kChunk;
  Element* to = p.o.at<Element>(tile.batch, tile.at + first, tile.q_head);
#pragma unroll
  for (int i = lane; i < kWarpRows * kPerRow; i += 32) {
    const int r = i / kPerRow, chunk = i % kPerRow;
    if (first + r < tile.rows && chunk * kChunk < p.sizes.head_dim_v) {
      *reinterpret_cast<uint4*>(to + r * p.o.row + chunk * kChunk) =
          *reinterpret_cast<const uint4*>(chunk_at(r, chunk));
    }
  }
}

}  // namespace verbatim::cuda::sm90::fwd
