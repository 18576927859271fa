#include "bench/measure.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

namespace verbatim::bench {

std::string_view to_string(Protocol protocol) {
  return protocol == Protocol::rested ? "rested" : "sustained";
}

Timing measure(const Device& device, Protocol protocol, const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  using namespace std::chrono_literals;
  std::vector<double> times;
  if (protocol == Protocol::rested) {
    std::this_thread::sleep_for(500ms);
    for (int i = 0; i < 3; ++i) device.time(call);
    for (int i = 0; i < 10; ++i) times.push_back(device.time(call));
  } else {
    for (const auto end = Clock::now() + 600ms; Clock::now() < end;) device.time(call);
    const auto end = Clock::now() + 300ms;
    do {
      times.push_back(device.time(call));
    } while (Clock::now() < end);
  }
  const double clock = device.clock_mhz();
  std::sort(times.begin(), times.end());
  const size_t n = times.size();
  const double median = (times[(n - 1) / 2] + times[n / 2]) / 2;
  return {median, times.front(), (times[n * 3 / 4] - times[n / 4]) / median, clock};
}

}  // namespace verbatim::bench
