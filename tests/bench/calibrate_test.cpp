#include "bench/calibrate.h"

#include <gtest/gtest.h>

#include "backend/backend.h"
#include "fake_device.h"
#include "verbatim/error.h"

namespace verbatim::bench {
namespace {

TEST(Calibrate, SaysSoWhenNoiseAteTheStep) {
  const auto backend = make_backend("cpu");
  try {
    const FakeDevice frozen([](const auto&) { return 1.0; });
    calibrate(*backend, frozen, 16, Dtype::f32, make_machine("cpu"), [](const std::string&) {});
    FAIL() << "a step of no time was taken for a measurement";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::device);
    EXPECT_EQ(error.details().argument, "backward step");
    EXPECT_EQ(error.details().got, "0 cycles");
  }
}

}  // namespace
}  // namespace verbatim::bench
