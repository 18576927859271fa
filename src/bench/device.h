// Devices as a benchmark needs them: memory, a clock, and what the device can do at its best.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "verbatim/tensor.h"

namespace verbatim::bench {

/// What results say about a device.
struct Facts {
  std::string name;
  int32_t workers = 1;       // multiprocessors, or hardware threads
  int64_t l2_bytes = 0;      // 0: unknown
  double max_clock_mhz = 0;  // 0: unknown
  std::string driver;        // empty: there is none
};

/// Work whose rate says what the device can do: `amount` operations or bytes per call.
struct Yardstick {
  double amount;
  std::function<void()> call;
};

/// How ordered sums travel between workers, with all of them busy.
struct HandOff {
  double reduce;     // cycles of adding a tile whose rows are in L2
  double signal;     // cycles from a flag's release to its acquisition by another worker
  double l2_bytes;   // of rows in turn, above which additions cost more than halfway to memory's
  double bandwidth;  // bytes a cycle, of all workers, when rows come from memory and go back
};

class Device {
 public:
  virtual ~Device() = default;
  virtual Facts facts() const = 0;
  /// Memory whose every byte is 0xFF, a NaN in every dtype. At least 16 bytes, whole 16 bytes.
  virtual std::shared_ptr<void> allocate(int64_t bytes) const = 0;
  /// Sets `bytes` bytes to 0xFF.
  virtual void poison(void* memory, int64_t bytes) const = 0;
  /// N(0, 1) from the stream `seed`: of one kind of device the same each time.
  virtual void fill_normal(const TensorView& dense, uint64_t seed) const = 0;
  /// Copies between memory of this device and of the host, either way, or inside one of them.
  virtual void copy(void* to, const void* from, int64_t bytes) const = 0;
  /// 32-bit words that differ between two allocations of `bytes` bytes, counted up to whole words.
  virtual int64_t count_differences(const void* a, const void* b, int64_t bytes) const = 0;
  /// Milliseconds that the work started by `call` takes, to its end.
  virtual double time(const std::function<void()>& call) const = 0;
  /// The clock in MHz right now; 0 when the device does not tell.
  virtual double clock_mhz() const = 0;
  /// A large bf16 matrix product (operations) and a large copy (bytes, read and written); nullopt
  /// where the device has no library for it. They own their memory.
  virtual std::optional<Yardstick> matmul() const = 0;
  virtual std::optional<Yardstick> large_copy() const = 0;
  /// Of f32 tiles of `tile_bytes`; nullopt where there are no kernels to measure it with.
  virtual std::optional<HandOff> hand_off(int64_t tile_bytes) const = 0;
};

/// "cpu", "cuda" or "cuda:N"; throws what make_backend() throws.
std::unique_ptr<Device> make_device(std::string_view name);
std::unique_ptr<Device> make_cuda_device(int index);

}  // namespace verbatim::bench
