// What ranks of one host need of a device to read each other's memory.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace verbatim {

/// The number of what was done last, in memory that all ranks of a host have, on a line of the
/// cache of its own. Numbers go round in a circle of 2^32.
struct alignas(64) Counter {
  std::atomic<uint32_t> value;

  bool has_reached(uint32_t number) const { return is_at(value.load(), number); }
  /// Whether `value` is `number`, or behind it on the nearer half of the circle.
  static bool is_at(uint32_t value, uint32_t number) {
    return static_cast<int32_t>(value - number) >= 0;
  }
};

/// By which another rank of the host finds an arena: what the device wrote, for its own kind.
using ArenaHandle = std::array<std::byte, 104>;

/// One rank's device. Work of a GPU goes on in streams, and no call waits for it; that of a CPU is
/// done when a call returns. A failure throws Error(device).
class PeerDevice {
 public:
  virtual ~PeerDevice() = default;
  /// By which others know the device; at most 31 characters.
  virtual std::string address() const = 0;
  /// Throws Error(unsupported) when memory of the device at that address cannot be read here.
  virtual void check_reach(const std::string& address) const = 0;
  /// All counters of signal(), await() and pull(), which last as long as this.
  virtual void attach(std::span<Counter> counters) = 0;

  /// Memory that others can open, as long as this lasts.
  virtual std::byte* make_arena(int64_t bytes, ArenaHandle& handle) = 0;
  /// That of another rank, until close_opened().
  virtual const std::byte* open_arena(const ArenaHandle& handle, int64_t bytes) = 0;
  /// What was opened is closed. False: it is not, for pulls do not end.
  virtual bool close_opened() = 0;
  /// What was made lasts as long as the process: others may still read it.
  virtual void keep_made() = 0;

  /// What follows is in sequence with the work on this stream (RunOptions::stream), and with what
  /// was before on another.
  virtual void follow(void* stream) = 0;
  virtual void copy(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  /// The counter gets that number when the work before is done, and all see what that wrote.
  virtual void signal(Counter& counter, uint32_t number) = 0;
  /// The work behind goes on when the counter has reached that number.
  virtual void await(const Counter& counter, uint32_t number) = 0;

  struct Pull {
    int32_t from;  // a rank: its pulls are in sequence
    std::byte* to;
    const std::byte* at;
    int64_t bytes;
    const Counter* ready;  // awaited before ...
    Counter* taken;        // ... and signalled behind the copy
    uint32_t number;       // of both
  };
  /// Behind all that was before the first pull since join(); beside pulls from other ranks.
  virtual void pull(const Pull& pull) = 0;
  /// The work behind finds all that was pulled.
  virtual void join() = 0;
  /// As pull(), but behind all that was before this call; join() need not wait for it.
  virtual void expect(const Pull& pull) = 0;
  /// The work behind finds what was expected from that rank with that number.
  virtual void join(int32_t from, uint32_t number) = 0;
};

/// The device of such a name (device_index()). Throws Error(unsupported) where it cannot do this.
std::unique_ptr<PeerDevice> make_peer_device(std::string_view device);
std::unique_ptr<PeerDevice> make_cpu_peer_device();
std::unique_ptr<PeerDevice> make_cuda_peer_device(int index);

}  // namespace verbatim
