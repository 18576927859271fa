#include "backend/cuda/load.h"
#include "backend/cuda/status.h"

namespace verbatim::test {
namespace {

constexpr int kSharedBytes = 160 * 1024;

__global__ void hold(unsigned seed) {
  extern __shared__ volatile int memory[];
  const unsigned draw = (seed + blockIdx.x * 2654435761u) * 2246822519u;
  const long long cycles = 20000 + draw % 400000;
  const long long begin = clock64();
  while (clock64() - begin < cycles) memory[threadIdx.x] = memory[threadIdx.x] + 1;
}

}  // namespace

void start_load(int ctas, unsigned seed, void* stream) {
  cuda::check(cudaFuncSetAttribute(hold, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
              "test.load");
  hold<<<ctas, 64, kSharedBytes, static_cast<cudaStream_t>(stream)>>>(seed);
  cuda::check(cudaGetLastError(), "test.load");
}

}  // namespace verbatim::test
