// What launches read, copied to a device once, without waiting for anything.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
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
  /// As many as there is room for. They have been read when this returns.
  void copy(std::span<const std::byte> bytes);

  /// Before a launch on `stream`, or into the `graph` that it captures: it will start after the
  /// copy.
  void before_launch(cudaStream_t stream, cudaGraph_t graph = nullptr) const;
  /// After a launch: in use until `end`.
  void in_use_until(std::shared_ptr<const End> end) const;
  /// Nobody will know when a launch has ended: in use for good.
  void keep() const noexcept { kept_ = true; }
  /// Whether all launches have ended.
  bool idle() const;

 private:
  int device_;
  cudaStream_t uploads_;
  cudaEvent_t uploaded_ = nullptr;
  void* memory_ = nullptr;
  mutable std::atomic<bool> kept_ = false;
  mutable std::mutex mutex_;
  mutable std::deque<std::shared_ptr<const End>> uses_;  // launches that may not have ended
  mutable size_t ask_at_ = 8;                            // so many of them whether they have
};

}  // namespace verbatim::cuda
