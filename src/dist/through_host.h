// For transports that move the host's memory alone.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "dist/executor.h"

namespace verbatim::dist {

/// Memory of the host for one message at a time, as long as the longest so far: pinning it costs
/// more than a copy, so calls share it.
class HostMemory {
 public:
  std::span<std::byte> room(const Backend& backend, size_t bytes);

 private:
  std::shared_ptr<std::byte> memory_;
  size_t size_ = 0;
};

/// Messages of a backend's memory over `host`: where this memory is another, each is copied to that
/// of the host and sent from there, and so it comes back. What is not the backend's may be sent,
/// too.
class ThroughHost final : public Transport {
 public:
  ThroughHost(Transport& host, HostMemory& memory, const Backend& backend, const RunOptions& run)
      : host_(host), memory_(memory), backend_(backend), run_(run) {}
  std::byte* room(int64_t bytes) override;
  void send(int32_t to, int64_t message, std::span<const std::byte> bytes) override;
  bool receive(int32_t from, int64_t message, std::span<std::byte> bytes) override;

 private:
  Transport& host_;
  HostMemory& memory_;
  const Backend& backend_;
  const RunOptions& run_;
};

}  // namespace verbatim::dist
