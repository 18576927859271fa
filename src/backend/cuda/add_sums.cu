#include "backend/cuda/add_sums.h"

#include "backend/cuda/device/mma.cuh"
#include "backend/cuda/device/result.cuh"
#include "backend/cuda/launch.cuh"

namespace verbatim::cuda {
namespace {

constexpr int kThreads = 256;

/// Two neighbours of dK or dV a thread; `ctas` CTAs a tile.
template <class Element>
__global__ void add_parts(const __grid_constant__ AddSums p, int32_t ctas) {
  const SummedTile tile = p.tiles[blockIdx.x / ctas];
  const int64_t pairs_of_dk = int64_t{tile.rows} * p.outputs[0].dim / 2;
  const int64_t pair = int64_t{blockIdx.x % ctas} * kThreads + threadIdx.x;
  const bool of_dv = pair >= pairs_of_dk;
  const SummedOutput& out = p.outputs[of_dv];
  const int64_t at = 2 * (of_dv ? pair - pairs_of_dk : pair);
  const int64_t row = at / out.dim;
  if (row >= tile.rows) return;
  const auto part = [&](int32_t i) {
    return reinterpret_cast<const float2*>(p.carried.block(p.parts[tile.first + i]))[pair];
  };
  float2 sum = part(0);
  for (int32_t i = 1; i < tile.parts; ++i) {
    const float2 next = part(i);
    sum = make_float2(sum.x + next.x, sum.y + next.y);
  }
  store_pair(out.to.at<Element>(0, tile.row + row, tile.head) + at % out.dim,
             result_of(sum.x, out.scale), result_of(sum.y, out.scale));
}

}  // namespace

void add_tile_sums(const AddSums& sums, cudaStream_t stream) {
  const int64_t pairs = int64_t{sums.most_rows} * (sums.outputs[0].dim + sums.outputs[1].dim) / 2;
  const int64_t ctas = (pairs + kThreads - 1) / kThreads;
  launch_threads("cuda.add_sums",
                 sums.dtype == Dtype::bf16 ? add_parts<__nv_bfloat16> : add_parts<__half>, kThreads,
                 ctas * kThreads * sums.count, stream, sums, static_cast<int32_t>(ctas));
}

}  // namespace verbatim::cuda
