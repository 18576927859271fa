#include "bench/cuda/kernels.h"

#include <cstdint>

#include "backend/cuda/status.h"

namespace verbatim::bench {
namespace {

__global__ void fill(uint16_t* out, size_t size, uint64_t seed) {
  const auto mix = [](uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
  };
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < size;
       i += size_t{gridDim.x} * blockDim.x) {
    const uint64_t bits = mix(seed * 0x9E3779B97F4A7C15ull + i);
    const float u = ((bits >> 40) + 1) * 0x1p-24f, v = (bits & 0xffffff) * 0x1p-24f;
    const float x = sqrtf(-2 * logf(u)) * cospif(2 * v);
    out[i] = static_cast<uint16_t>((__float_as_uint(x) + 0x8000) >> 16);
  }
}

__global__ void count(const uint32_t* a, const uint32_t* b, size_t words,
                      unsigned long long* total) {
  unsigned long long mine = 0;
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < words;
       i += size_t{gridDim.x} * blockDim.x) {
    mine += a[i] != b[i];
  }
  if (mine > 0) atomicAdd(total, mine);
}

}  // namespace

void fill_normal(void* out, size_t elements, uint64_t seed) {
  fill<<<1024, 256>>>(static_cast<uint16_t*>(out), elements, seed);
  cuda::check(cudaGetLastError(), "bench");
}

void count_differences(const void* a, const void* b, size_t words, void* total) {
  count<<<512, 256>>>(static_cast<const uint32_t*>(a), static_cast<const uint32_t*>(b), words,
                      static_cast<unsigned long long*>(total));
  cuda::check(cudaGetLastError(), "bench");
}

}  // namespace verbatim::bench
