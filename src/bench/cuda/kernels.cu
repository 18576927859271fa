#include "bench/cuda/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/device/clock.cuh"
#include "backend/cuda/status.h"
#include "core/random.h"

namespace verbatim::bench {
namespace {

template <class Element>
__global__ void fill(Element* out, int64_t size, uint64_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * blockDim.x) {
    const uint64_t bits = random_bits(seed, i);
    const float u = ((bits >> 40) + 1) * 0x1p-24f, v = (bits & 0xffffff) * 0x1p-24f;
    out[i] = static_cast<Element>(sqrtf(-2 * logf(u)) * cospif(2 * v));
  }
}

__global__ void count(const uint32_t* a, const uint32_t* b, int64_t words,
                      unsigned long long* total) {
  unsigned long long mine = 0;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < words;
       i += int64_t{gridDim.x} * blockDim.x) {
    mine += a[i] != b[i];
  }
  if (mine > 0) atomicAdd(total, mine);
}

__global__ void spin(long long* out) {
  const long long begin_ns = cuda::nanoseconds(), begin = clock64();
  long long now = begin_ns;
  while (now - begin_ns < 100'000) now = cuda::nanoseconds();
  out[0] = clock64() - begin;
  out[1] = now - begin_ns;
}

void launched() { cuda::check(cudaGetLastError(), "bench"); }

}  // namespace

void fill_normal(void* out, Dtype dtype, int64_t elements, uint64_t seed) {
  const auto start = [&]<class Element>(Element*) {
    fill<<<1024, 256>>>(static_cast<Element*>(out), elements, seed);
  };
  if (dtype == Dtype::f32) start(static_cast<float*>(nullptr));
  if (dtype == Dtype::f16) start(static_cast<__half*>(nullptr));
  if (dtype == Dtype::bf16) start(static_cast<__nv_bfloat16*>(nullptr));
  launched();
}

void count_differences(const void* a, const void* b, int64_t words, unsigned long long* total) {
  count<<<512, 256>>>(static_cast<const uint32_t*>(a), static_cast<const uint32_t*>(b), words,
                      total);
  launched();
}

void read_clock(long long* out) {
  spin<<<1, 1>>>(out);
  launched();
}

}  // namespace verbatim::bench
