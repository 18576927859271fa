#include "dist/through_host.h"

namespace verbatim::dist {

std::span<std::byte> HostMemory::room(const Backend& backend, size_t bytes) {
  if (bytes > size_) {
    memory_.reset();
    size_ = 0;
    memory_ = backend.allocate_on_host(static_cast<int64_t>(bytes));
    size_ = bytes;
  }
  return {memory_.get(), bytes};
}

std::byte* ThroughHost::room(int64_t bytes) {
  return backend_.is_on_host() ? host_.room(bytes) : nullptr;
}

void ThroughHost::send(int32_t to, int64_t message, std::span<const std::byte> bytes) {
  if (backend_.is_on_host()) return host_.send(to, message, bytes);
  const std::span<std::byte> here = memory_.room(backend_, bytes.size());
  const int64_t size = std::ssize(bytes);
  backend_.copy({here.data(), size}, {const_cast<std::byte*>(bytes.data()), size}, run_);
  backend_.synchronize(run_);
  host_.send(to, message, here);
}

bool ThroughHost::receive(int32_t from, int64_t message, std::span<std::byte> bytes) {
  if (backend_.is_on_host()) return host_.receive(from, message, bytes);
  const std::span<std::byte> here = memory_.room(backend_, bytes.size());
  if (!host_.receive(from, message, here)) return false;
  backend_.copy({bytes.data(), std::ssize(bytes)}, {here.data(), std::ssize(here)}, run_);
  backend_.synchronize(run_);  // before the next message takes its place
  return true;
}

}  // namespace verbatim::dist
