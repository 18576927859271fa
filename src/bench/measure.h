// How work is timed: two protocols that are never mixed, since heat decides a device's clock.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "bench/device.h"

namespace verbatim::bench {

/// How long and how often: bench/workloads.json.
enum class Protocol {
  rested,     // idle, calls to warm up, then the median of some calls
  sustained,  // the same work for a while, then the median over some time
};

struct Timing {
  double ms = 0;         // median
  double least = 0;      // ms of the fastest call: what other work on the device disturbs least
  double noise = 0;      // spread of the middle half of the calls, over the median
  double clock_mhz = 0;  // right after the last call; 0: unknown
  std::vector<double> calls;  // ms of each, as they came
};
Timing measure(const Device& device, Protocol protocol, const std::function<void()>& call);
/// Of each of `calls`, made in turn, so that heat and clock are the same for all. Rested: one burst
/// for each of them, so that bursts are as long as of one; sustained: as long for each as for one.
std::vector<Timing> measure_in_turn(const Device& device, Protocol protocol,
                                    std::span<const std::function<void()>> calls);
/// How many times as long as `b` a call of `a` takes, of two that were timed in turn: the median of
/// neighbours. Where a power limit sets in within a burst, the medians of both may be of its two
/// sides.
double ratio_in_turn(const Timing& a, const Timing& b);

}  // namespace verbatim::bench
