#include "bench/measure.h"

#include <gtest/gtest.h>

#include <array>

#include "fake_device.h"

namespace verbatim::bench {
namespace {

TEST(Measure, TwoCallsInTurnSeeTheSameHeat) {
  // A device that slows down with every call of a burst, whoever makes it.
  int calls = 0, last = -1;
  std::array<int, 2> made{};
  const FakeDevice device([&](const auto& call) {
    call();
    return 1.0 + calls++ % 13;
  });
  const auto call = [&](int which) { return [&, which] { ++made[which], last = which; }; };
  const std::array<std::function<void()>, 2> both{call(0), call(1)};

  const auto alone = measure(device, Protocol::rested, both[0]);
  EXPECT_EQ(made, (std::array{13, 0}));
  EXPECT_EQ(alone.ms, 8.5) << "the median of 4, 5, ..., 13";
  EXPECT_EQ(alone.least, 4);

  made = {}, calls = 0;
  const auto found = measure_in_turn(device, Protocol::rested, both);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(made, (std::array{13, 13})) << "two bursts of 13";
  EXPECT_EQ(last, 1) << "the bits of the last call are compared";
  // Each leads one burst, so both have seen 4, 5, ..., 13 once.
  EXPECT_EQ(found[0].ms, 8.5);
  EXPECT_EQ(found[1].ms, 8.5);
}

TEST(Measure, RatiosAreOfNeighbours) {
  // Each call of b takes .9 of the a beside it, but a power limit has set in by the last of a.
  const Timing a{.calls = {10, 10, 20, 20, 20}}, b{.calls = {9, 9, 9, 18, 18}};
  EXPECT_DOUBLE_EQ(ratio_in_turn(b, a), 0.9);
}

}  // namespace
}  // namespace verbatim::bench
