#include "backend/cuda/load.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "backend/cuda/device/clock.cuh"
#include "backend/cuda/status.h"

namespace verbatim::test {
namespace {

constexpr int kSharedBytes = 160 * 1024;  // beside it no Hopper backward fits
constexpr int kAllShared = 227 * 1024;    // what one CTA can have

__global__ void hold(unsigned seed) {
  extern __shared__ volatile int memory[];
  const unsigned draw = (seed + blockIdx.x * 2654435761u) * 2246822519u;
  const long long cycles = 20000 + draw % 400000;
  const long long begin = clock64();
  while (clock64() - begin < cycles) memory[threadIdx.x] = memory[threadIdx.x] + 1;
}

__global__ void nothing() {}

__global__ void occupy(volatile int* flags) {
  constexpr long long kLongest = 5'000'000'000;
  const long long begin = cuda::nanoseconds();
  flags[1 + blockIdx.x] = 1;
  while (flags[0] <= blockIdx.x && cuda::nanoseconds() - begin < kLongest) __nanosleep(1000);
}

}  // namespace

void start_load(int ctas, unsigned seed, void* stream) {
  cuda::check(cudaFuncSetAttribute(hold, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
              "test.load");
  hold<<<ctas, 64, kSharedBytes, static_cast<cudaStream_t>(stream)>>>(seed);
  cuda::check(cudaGetLastError(), "test.load");
}

bool kernels_run() {
  using std::chrono::steady_clock;
  cudaStream_t stream;
  cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "test.load");
  nothing<<<1, 32, 0, stream>>>();
  const auto limit = steady_clock::now() + std::chrono::seconds(1);
  cudaError_t state;
  while ((state = cudaStreamQuery(stream)) == cudaErrorNotReady && steady_clock::now() < limit) {
    std::this_thread::yield();
  }
  cudaGetLastError();
  cudaStreamDestroy(stream);
  return state == cudaSuccess;
}

Occupied::Occupied(int multiprocessors, By by) : count_(multiprocessors) {
  using std::chrono::steady_clock;
  cudaStream_t stream = nullptr;
  int* flags = nullptr;
  // Of a priority of its own: streams of one priority may share a queue, and then wait for the
  // first.
  int lowest, highest;
  cuda::check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "test.load");
  cuda::check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest), "test.load");
  const size_t count = static_cast<size_t>(multiprocessors) + 1;
  cuda::check(cudaHostAlloc(&flags, count * sizeof(int), cudaHostAllocMapped), "test.load");
  std::fill_n(flags, count, 0);
  stream_ = stream;
  flags_ = flags;
  cuda::check(cudaFuncSetAttribute(occupy, cudaFuncAttributeMaxDynamicSharedMemorySize, kAllShared),
              "test.load");
  occupy<<<multiprocessors, 1, by == By::all_shared ? kAllShared : kSharedBytes, stream>>>(flags);
  cuda::check(cudaGetLastError(), "test.load");
  const auto limit = steady_clock::now() + std::chrono::seconds(10);
  for (int i = 1; i <= multiprocessors; ++i) {
    while (flags_[i] == 0 && steady_clock::now() < limit) std::this_thread::yield();
  }
  if (steady_clock::now() >= limit) {
    flags_[0] = count_;
    throw std::runtime_error("the multiprocessors are not free");
  }
}

bool Occupied::holds() const {
  return cudaStreamQuery(static_cast<cudaStream_t>(stream_)) == cudaErrorNotReady;
}

void Occupied::leave(int multiprocessors) { flags_[0] = multiprocessors; }

Occupied::~Occupied() {
  flags_[0] = count_;
  cudaStreamSynchronize(static_cast<cudaStream_t>(stream_));
  cudaStreamDestroy(static_cast<cudaStream_t>(stream_));
  cudaFreeHost(const_cast<int*>(flags_));
}

}  // namespace verbatim::test
