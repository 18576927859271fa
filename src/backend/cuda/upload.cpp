#include "backend/cuda/upload.h"

#include <algorithm>
#include <utility>

#include "backend/cuda/driver.h"

namespace verbatim::cuda {

Upload::Upload(const Device& device, size_t bytes) : device_(device) {
  const PrimaryContext own(device_.index);
  const RelaxedCapture relaxed;
  check(cudaMallocFromPoolAsync(&memory_, bytes, device_.plans, device_.uploads), "cuda.plan");
}

Upload::~Upload() {
  if (kept_) return;
  try {
    const PrimaryContext own(device_.index);
    for (const auto& end : uses_) end->hold_back(device_.uploads);
    cudaFreeAsync(memory_, device_.uploads);
    if (uploaded_) cudaEventDestroy(uploaded_);
  } catch (const Error&) {  // no device, no memory
  }
}

void Upload::copy(std::span<const std::byte> bytes,
                  const std::function<void(cudaStream_t)>& write) {
  const PrimaryContext own(device_.index);
  const RelaxedCapture relaxed;
  // The runtime has copied `bytes` when this returns; the device need not have.
  check(
      cudaMemcpyAsync(memory_, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, device_.uploads),
      "cuda.plan");
  check(cudaEventCreateWithFlags(&uploaded_, cudaEventDisableTiming), "cuda.plan");
  check(cudaEventRecord(uploaded_, device_.uploads), "cuda.plan");
  if (!write) return;
  check(cudaStreamWaitEvent(device_.writes, uploaded_), "cuda.plan");
  write(device_.writes);
  check(cudaEventRecord(uploaded_, device_.writes), "cuda.plan");
  in_use_until(std::make_shared<const End>(device_, device_.writes));
}

void Upload::before_launch(cudaStream_t stream, cudaGraph_t graph) const {
  if (graph) {  // which cannot wait for an event from outside it
    const RelaxedCapture relaxed;
    check(cudaEventSynchronize(uploaded_), "cuda.plan");
  } else {
    check(cudaStreamWaitEvent(stream, uploaded_), "cuda.plan");
  }
}

void Upload::in_use_until(std::shared_ptr<const End> end) const {
  const std::lock_guard lock(mutex_);
  if (uses_.size() >= ask_at_) {  // rarely: asking costs as much as a launch's own calls
    const RelaxedCapture relaxed;
    while (!uses_.empty() && uses_.front()->reached()) uses_.pop_front();
    ask_at_ = std::max<size_t>(8, 2 * uses_.size());
  }
  uses_.push_back(std::move(end));
}

bool Upload::idle() const {
  const std::lock_guard lock(mutex_);
  return !kept_ && std::ranges::all_of(uses_, [](const auto& end) { return end->reached(); });
}

}  // namespace verbatim::cuda
