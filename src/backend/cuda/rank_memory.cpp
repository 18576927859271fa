// The memory that pieces of a plan run in.
#include <algorithm>
#include <vector>

#include "backend/cuda/copy_rows.h"
#include "backend/cuda/executor.h"

namespace verbatim::cuda {

std::shared_ptr<std::byte> CudaBackend::allocate(int64_t bytes, const RunOptions& run) const {
  const DeviceGuard guard(device_.index);
  const auto memory =
      std::make_shared<Scratch>(device_, bytes, static_cast<cudaStream_t>(run.stream));
  return {memory, static_cast<std::byte*>(memory->data())};
}

void CudaBackend::fill(const ByteRows& rows, uint8_t value, const RunOptions& run) const {
  if (rows.bytes == 0 || rows.rows == 0) return;
  const DeviceGuard guard(device_.index);
  cuda::check(cudaMemset2DAsync(rows.at, std::max(rows.apart, rows.bytes), value, rows.bytes,
                                rows.rows, static_cast<cudaStream_t>(run.stream)),
              "cuda.fill");
}

void CudaBackend::copy(const ByteRows& to, const ByteRows& from, const RunOptions& run) const {
  if (to.bytes == 0 || to.rows == 0) return;
  const DeviceGuard guard(device_.index);
  const auto apart = [](const ByteRows& rows) {
    return static_cast<size_t>(std::max(rows.apart, rows.bytes));
  };
  cuda::check(cudaMemcpy2DAsync(to.at, apart(to), from.at, apart(from), to.bytes, to.rows,
                                cudaMemcpyDefault, static_cast<cudaStream_t>(run.stream)),
              "cuda.copy");
}

void CudaBackend::copy(std::span<const RowCopy> copies, const RunOptions& run) const {
  std::vector<RowCopy> in_words;
  for (const RowCopy& copy : copies) {
    if (copy.to.bytes == 0 || copy.to.rows == 0) continue;
    if (is_in_words(copy)) {
      in_words.push_back(copy);
    } else {
      this->copy(copy.to, copy.from, run);
    }
  }
  const DeviceGuard guard(device_.index);
  copy_rows(in_words, static_cast<cudaStream_t>(run.stream));
}

std::shared_ptr<std::byte> CudaBackend::allocate_on_host(int64_t bytes) const {
  const DeviceGuard guard(device_.index);
  void* memory = nullptr;
  cuda::check(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable), "cuda.host");
  return {static_cast<std::byte*>(memory), [](std::byte* at) { cudaFreeHost(at); }};
}

void CudaBackend::synchronize(const RunOptions& run) const {
  const DeviceGuard guard(device_.index);
  cuda::check(cudaStreamSynchronize(static_cast<cudaStream_t>(run.stream)), "cuda.synchronize");
  check_waits();
}

}  // namespace verbatim::cuda
