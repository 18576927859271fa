#include "backend/cuda/spread_runs.h"

#include <algorithm>

#include "backend/cuda/status.h"

namespace verbatim::cuda {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kMostRows = 65535;  // of a grid

__global__ void __launch_bounds__(kThreads) spread(const RunSpread* lists, int32_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (int32_t l = static_cast<int32_t>(blockIdx.y); l < count;
       l += static_cast<int32_t>(gridDim.y)) {
    const RunSpread list = lists[l];
    if (i < list.runs) list.to[i] = spread_run(list, i);
  }
}

}  // namespace

void spread_runs(const RunSpread* lists, int32_t count, int64_t most, cudaStream_t stream) {
  if (most == 0) return;
  const auto blocks = static_cast<unsigned>((most + kThreads - 1) / kThreads);
  const unsigned rows = std::min(static_cast<unsigned>(count), kMostRows);
  spread<<<dim3(blocks, rows), kThreads, 0, stream>>>(lists, count);
  check(cudaGetLastError(), "cuda.spread_runs");
}

}  // namespace verbatim::cuda
