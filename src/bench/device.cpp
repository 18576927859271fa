#include "bench/device.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>

#include "backend/backend.h"
#include "core/random.h"
#include "core/threads.h"

namespace verbatim::bench {
namespace {

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "cpu";
}

class CpuDevice : public Device {
 public:
  Facts facts() const override {
    return {.name = cpu_name(),
            .workers = core_count(),
            .l2_bytes = std::max<int64_t>(sysconf(_SC_LEVEL2_CACHE_SIZE), 0),
            .driver = ""};
  }

  std::shared_ptr<void> allocate(int64_t bytes) const override {
    const size_t size = static_cast<size_t>(bytes + 15) / 16 * 16 + (bytes == 0 ? 16 : 0);
    const std::shared_ptr<std::byte[]> memory(new std::byte[size]);
    poison(memory.get(), static_cast<int64_t>(size));
    return {memory, memory.get()};
  }

  void poison(void* memory, int64_t bytes) const override { std::memset(memory, 0xFF, bytes); }

  void fill_normal(const TensorView& dense, uint64_t seed) const override {
    verbatim::fill_normal(dense, seed);
  }

  void copy(void* to, const void* from, int64_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

  int64_t count_differences(const void* a, const void* b, int64_t bytes) const override {
    const auto* x = static_cast<const uint32_t*>(a);
    const auto* y = static_cast<const uint32_t*>(b);
    int64_t count = 0;
    for (int64_t i = 0; i < (bytes + 3) / 4; ++i) count += x[i] != y[i];
    return count;
  }

  double time(const std::function<void()>& call) const override {
    const auto start = std::chrono::steady_clock::now();
    call();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
  }

  double clock_mhz() const override { return 0; }
  std::optional<Yardstick> matmul() const override { return std::nullopt; }
  std::optional<HandOff> hand_off(int64_t) const override { return std::nullopt; }

  std::optional<Yardstick> large_copy() const override {
    constexpr int64_t kBytes = int64_t{64} << 20;
    return Yardstick{2.0 * kBytes, [this, from = allocate(kBytes), to = allocate(kBytes)] {
                       copy(to.get(), from.get(), kBytes);
                     }};
  }
};

}  // namespace

std::unique_ptr<Device> make_device(std::string_view name) {
  const int index = device_index(name);
  if (index < 0) return std::make_unique<CpuDevice>();
  return make_cuda_device(index);
}

}  // namespace verbatim::bench
