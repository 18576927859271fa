// Bytes from one process or thread to another.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace verbatim::dist {

/// In memory that both have and that starts as zeros: what one writes, the other reads in its
/// sequence. Neither ever waits.
class ByteRing {
 public:
  static constexpr size_t kBytes = 1 << 15;

  /// Writes as many of them, from the first on, as there is room for. Returns their number.
  size_t write(std::span<const std::byte> bytes) {
    const uint64_t end = written_.load(std::memory_order_relaxed);
    const size_t count =
        std::min<size_t>(bytes.size(), read_.load(std::memory_order_acquire) + kBytes - end);
    if (count == 0) return 0;
    const size_t straight = std::min(count, kBytes - end % kBytes);  // up to the end of the memory
    std::memcpy(bytes_.data() + end % kBytes, bytes.data(), straight);
    if (count > straight) std::memcpy(bytes_.data(), bytes.data() + straight, count - straight);
    written_.store(end + count, std::memory_order_release);
    return count;
  }
  /// Fills as many, from the first on, as there are. Returns their number.
  size_t read(std::span<std::byte> bytes) {
    const uint64_t begin = read_.load(std::memory_order_relaxed);
    const size_t count =
        std::min<size_t>(bytes.size(), written_.load(std::memory_order_acquire) - begin);
    if (count == 0) return 0;
    const size_t straight = std::min(count, kBytes - begin % kBytes);
    std::memcpy(bytes.data(), bytes_.data() + begin % kBytes, straight);
    if (count > straight) std::memcpy(bytes.data() + straight, bytes_.data(), count - straight);
    read_.store(begin + count, std::memory_order_release);
    return count;
  }

 private:
  alignas(64) std::atomic<uint64_t> written_;  // so far
  alignas(64) std::atomic<uint64_t> read_;
  alignas(64) std::array<std::byte, kBytes> bytes_;
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
};

}  // namespace verbatim::dist
