// For transports that move the host's memory alone.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "dist/executor.h"

namespace verbatim::dist {

/// Messages of a backend's memory over `host`: where this memory is another, each is copied to that
/// of the host and sent from there, and so it comes back. What is not the backend's may be sent,
/// too. Holds memory for the longest message.
class ThroughHost final : public Transport {
 public:
  ThroughHost(Transport& host, const Backend& backend, const RunOptions& run)
      : host_(host), backend_(backend), run_(run) {}
  void send(int32_t to, int64_t message, std::span<const std::byte> bytes) override;
  bool receive(int32_t from, int64_t message, std::span<std::byte> bytes) override;

 private:
  std::span<std::byte> room(size_t bytes);

  Transport& host_;
  const Backend& backend_;
  const RunOptions& run_;
  std::shared_ptr<std::byte> memory_;
  size_t size_ = 0;
};

}  // namespace verbatim::dist
