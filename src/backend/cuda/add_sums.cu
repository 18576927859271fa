#include "backend/cuda/add_sums.h"

#include <algorithm>

#include "backend/cuda/device/mma.cuh"
#include "backend/cuda/launch.cuh"

namespace verbatim::cuda {
namespace {

/// Blocks that one launch adds.
struct Parts {
  static constexpr int32_t kMost = 64;
  int32_t count = 0;
  int32_t block[kMost];
};

/// Two neighbours of dK or dV a thread. Unless `last`, the sum goes to the first block.
template <class Element>
__global__ void add_parts(const __grid_constant__ SummedTile tile,
                          const __grid_constant__ Parts parts, bool last) {
  const int64_t pairs_of_dk = int64_t{tile.rows} * tile.outputs[0].dim / 2;
  const int64_t pair = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const bool of_dv = pair >= pairs_of_dk;
  const SummedRows& out = tile.outputs[of_dv];
  const int64_t at = 2 * (of_dv ? pair - pairs_of_dk : pair);
  const int64_t row = at / out.dim;
  if (row >= tile.rows) return;
  const auto part = [&](int32_t i) {
    return reinterpret_cast<float2*>(tile.blocks.block(parts.block[i])) + pair;
  };
  float2 sum = *part(0);
  for (int32_t i = 1; i < parts.count; ++i) {
    const float2 next = *part(i);
    sum = make_float2(sum.x + next.x, sum.y + next.y);
  }
  if (last) {
    Element* to = reinterpret_cast<Element*>(out.data) + row * out.row + at % out.dim;
    store_pair(to, sum.x * out.scale, sum.y * out.scale);
  } else {
    *part(0) = sum;
  }
}

}  // namespace

void add_tile_sums(const SummedTile& tile, const std::vector<int32_t>& parts, cudaStream_t stream) {
  const int64_t pairs = int64_t{tile.rows} * (tile.outputs[0].dim + tile.outputs[1].dim) / 2;
  for (size_t next = 1, added = 0; added < parts.size(); added = next) {
    Parts some;
    some.block[some.count++] = parts.front();
    for (; next < parts.size() && some.count < Parts::kMost; ++next)
      some.block[some.count++] = parts[next];
    launch_threads("cuda.add_sums",
                   tile.dtype == Dtype::bf16 ? add_parts<__nv_bfloat16> : add_parts<__half>, 256,
                   pairs, stream, tile, some, next == parts.size());
  }
}

}  // namespace verbatim::cuda
