#include "backend/cuda/repeat.h"

namespace verbatim::test {
namespace {

__global__ void compare(const uint16_t* a, const uint16_t* b, size_t words,
                        unsigned long long* differing) {
  unsigned long long found = 0;
  const size_t step = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < words; i += step) {
    found += a[i] != b[i];
  }
  if (found > 0) atomicAdd(differing, found);
}

}  // namespace

Repeats::Repeats(GpuCase& of) : case_(of) {
  for (GpuTensor* output : case_.outputs()) {
    const size_t bytes = output->host.bytes().size();
    cuda::check(cudaMalloc(&expected_.emplace_back(), bytes), "test.repeat");
    cuda::check(cudaMemcpy(expected_.back(), output->memory(), bytes, cudaMemcpyDeviceToDevice),
                "test.repeat");
  }
  cuda::check(cudaMalloc(&count_, sizeof(*count_)), "test.repeat");
  cuda::check(cudaDeviceSynchronize(), "test.repeat");
}

Repeats::~Repeats() {
  for (void* memory : expected_) cudaFree(memory);
  cudaFree(count_);
}

int64_t Repeats::differing(const cuda::CudaBackend& backend, const SharedPlan& forward,
                           const SharedPlan& backward, void* stream, int64_t times,
                           const std::function<void(int64_t)>& before) {
  auto* const on = static_cast<cudaStream_t>(stream);
  const RunOptions options{.stream = stream};
  cuda::check(cudaMemsetAsync(count_, 0, sizeof(*count_), on), "test.repeat");
  for (int64_t i = 0; i < times; ++i) {
    if (before) before(i);
    const auto outputs = case_.outputs();
    for (GpuTensor* output : outputs) {
      cuda::check(cudaMemsetAsync(output->memory(), 0xff, output->host.bytes().size(), on),
                  "test.repeat");
    }
    backend.forward(forward, case_.forward(), options);
    backend.backward(backward, case_.backward(), options);
    for (size_t o = 0; o < outputs.size(); ++o) {
      compare<<<128, 256, 0, on>>>(static_cast<const uint16_t*>(outputs[o]->memory()),
                                   static_cast<const uint16_t*>(expected_[o]),
                                   outputs[o]->host.bytes().size() / 2, count_);
    }
    cuda::check(cudaGetLastError(), "test.repeat");
  }
  unsigned long long count = 0;
  cuda::check(cudaMemcpyAsync(&count, count_, sizeof(count), cudaMemcpyDeviceToHost, on),
              "test.repeat");
  backend.synchronize(options);
  return static_cast<int64_t>(count);
}

}  // namespace verbatim::test
