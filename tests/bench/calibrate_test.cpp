#include "bench/calibrate.h"

#include <gtest/gtest.h>

#include "backend/backend.h"
#include "verbatim/error.h"

namespace verbatim::bench {
namespace {

/// The CPU, but every call takes as long as the one before: no step can be told.
class Frozen : public Device {
 public:
  Facts facts() const override { return {.name = "frozen", .workers = 2, .driver = ""}; }
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
  double time(const std::function<void()>&) const override { return 1; }
  double clock_mhz() const override { return 0; }
  std::optional<Yardstick> matmul() const override { return std::nullopt; }
  std::optional<Yardstick> large_copy() const override { return std::nullopt; }
  std::optional<HandOff> hand_off(int64_t) const override { return std::nullopt; }

 private:
  std::unique_ptr<Device> cpu_ = make_device("cpu");
};

TEST(Calibrate, SaysSoWhenNoiseAteTheStep) {
  const auto backend = make_backend("cpu");
  try {
    calibrate(*backend, Frozen(), 16, Dtype::f32, make_machine("cpu"), [](const std::string&) {});
    FAIL() << "a step of no time was taken for a measurement";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::device);
    EXPECT_EQ(error.details().argument, "backward step");
    EXPECT_EQ(error.details().got, "0 cycles");
  }
}

}  // namespace
}  // namespace verbatim::bench
