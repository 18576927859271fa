// A device for tests of what measures.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "bench/device.h"

namespace verbatim::bench {

/// The CPU, but `time` says how long a call takes.
class FakeDevice : public Device {
 public:
  using Call = std::function<void()>;
  explicit FakeDevice(std::function<double(const Call&)> time) : time_(std::move(time)) {}

  Facts facts() const override { return {.name = "fake", .workers = 2, .driver = ""}; }
  std::shared_ptr<void> allocate(int64_t bytes) const override { return cpu_->allocate(bytes); }
  void poison(void* memory, int64_t bytes) const override { cpu_->poison(memory, bytes); }
  void fill_normal(const TensorView& dense, uint64_t seed) const override {
    cpu_->fill_normal(dense, seed);
  }
  void copy(void* to, const void* from, int64_t bytes) const override {
    cpu_->copy(to, from, bytes);
  }
  int64_t count_differences(const void* a, const void* b, int64_t bytes) const override {
    return cpu_->count_differences(a, b, bytes);
  }
  double time(const Call& call) const override { return time_(call); }
  double clock_mhz() const override { return 0; }
  std::optional<Yardstick> matmul() const override { return std::nullopt; }
  std::optional<Yardstick> large_copy() const override { return std::nullopt; }
  std::optional<HandOff> hand_off(int64_t) const override { return std::nullopt; }

 private:
  std::function<double(const Call&)> time_;
  std::unique_ptr<Device> cpu_ = make_device("cpu");
};

}  // namespace verbatim::bench
