#include "bench/measure.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

namespace verbatim::bench {

std::string_view to_string(Protocol protocol) {
  return protocol == Protocol::rested ? "rested" : "sustained";
}

namespace {

Timing summarise(std::vector<double> times, double clock_mhz) {
  std::sort(times.begin(), times.end());
  const size_t n = times.size();
  const double median = (times[(n - 1) / 2] + times[n / 2]) / 2;
  return {median, times.front(), (times[n * 3 / 4] - times[n / 4]) / median, clock_mhz};
}

}  // namespace

std::vector<Timing> measure_in_turn(const Device& device, Protocol protocol,
                                    std::span<const std::function<void()>> calls) {
  using Clock = std::chrono::steady_clock;
  using namespace std::chrono_literals;
  const size_t n = calls.size();
  std::vector<std::vector<double>> times(n);
  if (protocol == Protocol::rested) {
    constexpr size_t kWarmUp = 3, kTimed = 10;
    for (size_t burst = 0; burst < n; ++burst) {  // no longer than if there were one call
      std::this_thread::sleep_for(500ms);
      for (size_t i = 0; i < kWarmUp + kTimed; ++i) {
        const size_t which = (burst + i) % n;
        const double ms = device.time(calls[which]);
        if (i >= kWarmUp) times[which].push_back(ms);
      }
    }
  } else {
    const auto each = [&](auto&& take) {
      for (size_t which = 0; which < n; ++which) take(which, device.time(calls[which]));
    };
    for (const auto end = Clock::now() + 600ms; Clock::now() < end;) each([](size_t, double) {});
    const auto end = Clock::now() + n * 300ms;
    do {
      each([&](size_t which, double ms) { times[which].push_back(ms); });
    } while (Clock::now() < end);
  }
  const double clock = device.clock_mhz();
  std::vector<Timing> timings;
  for (auto& taken : times) timings.push_back(summarise(std::move(taken), clock));
  return timings;
}

Timing measure(const Device& device, Protocol protocol, const std::function<void()>& call) {
  return measure_in_turn(device, protocol, {&call, 1}).front();
}

}  // namespace verbatim::bench
