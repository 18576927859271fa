#include "bench/cuda/hand_off.h"

#include "backend/cuda/device/hand_off.cuh"
#include "backend/cuda/sm90/ptx.cuh"

namespace verbatim::bench {
namespace {

namespace ptx = cuda::ptx;

constexpr int kLine = 128 / sizeof(int32_t);  // flags do not share a line

__global__ void reduce(float* memory, int64_t slots, int32_t bytes, int32_t count,
                       long long* cycles) {
  extern __shared__ __align__(128) float tile[];
  for (int i = threadIdx.x; i < bytes / 4; i += blockDim.x) tile[i] = 1;
  ptx::fence_async_shared();
  __syncthreads();
  if (threadIdx.x != 0) return;
  const long long begin = clock64();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t slot = (blockIdx.x + i * gridDim.x) % slots;
    ptx::bulk_add_f32(memory + slot * (bytes / 4), tile, bytes);
    ptx::bulk_commit();
    ptx::bulk_wait_complete();
  }
  cycles[blockIdx.x] = clock64() - begin;
}

__global__ void pass(int32_t* flags, int32_t count, long long* cycles) {
  int32_t* flag = flags + blockIdx.x / 2 * kLine;
  const int32_t mine = blockIdx.x % 2;
  const long long begin = clock64();
  for (int32_t turn = mine; turn < 2 * count; turn += 2) {
    while (cuda::load_acquire(flag) < turn) {
    }
    cuda::store_release(flag, turn + 1);
  }
  cycles[blockIdx.x] = clock64() - begin;
}

}  // namespace

cudaError_t reduce_tiles(float* memory, int64_t slots, int32_t bytes, int32_t count, int32_t blocks,
                         long long* cycles) {
  // More than half of a multiprocessor's shared memory: one CTA on each.
  const int shared = bytes > 120 * 1024 ? bytes : 120 * 1024;
  const cudaError_t status =
      cudaFuncSetAttribute(reduce, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (status != cudaSuccess) return status;
  reduce<<<blocks, 128, shared>>>(memory, slots, bytes, count, cycles);
  return cudaGetLastError();
}

cudaError_t pass_flags(int32_t* flags, int32_t count, int32_t blocks, long long* cycles) {
  // Cooperative: a CTA whose partner is not running would wait for ever.
  void* arguments[] = {&flags, &count, &cycles};
  return cudaLaunchCooperativeKernel(pass, dim3(blocks), dim3(1), arguments);
}

}  // namespace verbatim::bench
