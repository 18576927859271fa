#include "backend/cuda/spread_runs.h"

#include "backend/cuda/status.h"

namespace verbatim::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) spread(const RunSpread* lists) {
  const RunSpread list = lists[blockIdx.y];
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < list.runs) list.to[i] = spread_run(list, i);
}

}  // namespace

void spread_runs(const RunSpread* lists, int32_t count, int64_t most, cudaStream_t stream) {
  if (count == 0) return;
  const auto blocks = static_cast<unsigned>((most + kThreads - 1) / kThreads);
  spread<<<dim3(blocks, static_cast<unsigned>(count)), kThreads, 0, stream>>>(lists);
  check(cudaGetLastError(), "cuda.spread_runs");
}

}  // namespace verbatim::cuda
