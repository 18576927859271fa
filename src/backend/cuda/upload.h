// What launches read, copied to a device once, without waiting for anything.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>

#include "backend/cuda/in_flight.h"
#include "backend/cuda/runtime.h"

namespace verbatim::cuda {

/// Bytes on a device. Safe to use from several threads once they are copied.
class Upload {
 public:
  Upload(const Device& device, size_t bytes);
  ~Upload();  // the memory goes when all launches have ended
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;

  const void* data() const { return memory_; }
  /// At most as many as there is room for; they have been read when this returns. Behind them the
  /// kernels that `write` gives to a stream write the rest, if there are any: a stream that no copy
  /// waits for, since that would wait for a multiprocessor then.
  void copy(std::span<const std::byte> bytes,
            const std::function<void(cudaStream_t)>& write = nullptr);

  /// Before a launch on `stream`, or into the `graph` that it captures: it will start after the
  /// copy.
  void before_launch(cudaStream_t stream, cudaGraph_t graph = nullptr) const;
  /// After a launch: in use until `end`.
  void in_use_until(std::shared_ptr<const End> end) const;
  /// Nobody will know when a launch has ended: in use for good.
  void keep() const noexcept { kept_ = true; }
  /// Whether all that writes and reads it has ended.
  bool idle() const;

 private:
  Device device_;
  cudaEvent_t uploaded_ = nullptr;
  void* memory_ = nullptr;
  mutable std::atomic<bool> kept_ = false;
  mutable std::mutex mutex_;
  mutable std::deque<std::shared_ptr<const End>> uses_;  // what may not have ended
  mutable size_t ask_at_ = 8;                            // so many of them whether they have
};

}  // namespace verbatim::cuda
