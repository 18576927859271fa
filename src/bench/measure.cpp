#include "bench/measure.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "bench/workloads.h"

namespace verbatim::bench {

namespace {

/// Of values in ascending order.
double median(std::span<const double> sorted) {
  const size_t n = sorted.size();
  return (sorted[(n - 1) / 2] + sorted[n / 2]) / 2;
}

Timing summarise(std::vector<double> calls, double clock_mhz) {
  std::vector<double> times = calls;
  std::sort(times.begin(), times.end());
  const size_t n = times.size();
  const double ms = median(times);
  return {ms, times.front(), (times[n * 3 / 4] - times[n / 4]) / ms, clock_mhz, std::move(calls)};
}

}  // namespace

std::vector<Timing> measure_in_turn(const Device& device, Protocol protocol,
                                    std::span<const std::function<void()>> calls) {
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  const size_t n = calls.size();
  std::vector<std::vector<double>> times(n);
  if (protocol == Protocol::rested) {
    const auto& [idle_s, warm_up_calls, timed_calls] = protocols().rested;
    for (size_t burst = 0; burst < n; ++burst) {  // no longer than if there were one call
      std::this_thread::sleep_for(Seconds(idle_s));
      for (size_t i = 0; i < warm_up_calls + timed_calls; ++i) {
        const size_t which = (burst + i) % n;
        const double ms = device.time(calls[which]);
        if (i >= warm_up_calls) times[which].push_back(ms);
      }
    }
  } else {
    const auto each = [&](auto&& take) {
      for (size_t which = 0; which < n; ++which) take(which, device.time(calls[which]));
    };
    const auto& [warm_up_s, timed_s] = protocols().sustained;
    for (const auto end = Clock::now() + Seconds(warm_up_s); Clock::now() < end;)
      each([](size_t, double) {});
    const auto end = Clock::now() + Seconds(static_cast<double>(n) * timed_s);
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

double ratio_in_turn(const Timing& a, const Timing& b) {
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(a.calls.size(), b.calls.size()); ++i)
    ratios.push_back(a.calls[i] / b.calls[i]);
  std::sort(ratios.begin(), ratios.end());
  return median(ratios);
}

}  // namespace verbatim::bench
