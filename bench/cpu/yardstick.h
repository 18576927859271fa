// What the machine's own float32 matrix product reaches, to set every rate in proportion.
#pragma once

namespace verbatim::bench {

/// Wall and process CPU time of one call, in seconds.
struct Cost {
  double wall, cpu;
};

/// oneDNN's sgemm of square matrices.
class Yardstick {
 public:
  explicit Yardstick(int threads);
  ~Yardstick();
  Yardstick(const Yardstick&) = delete;

  double flops() const;
  void run();

 private:
  struct Impl;
  Impl* impl_;
};

/// FLOP/s of one core at the clock it runs at now: cycles x lanes x two FMA units x 2. A yardstick
/// below half of this is a library that does not know the CPU, and no ratio to it means anything.
double core_peak();

/// Wall and CPU clocks, now.
Cost now();

}  // namespace verbatim::bench
