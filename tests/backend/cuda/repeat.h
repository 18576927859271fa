// Repeating a case without leaving the device: a thousand times in the time of a few downloads.
#pragma once

#include <functional>
#include <vector>

#include "backend/cuda/gpu_case.h"

namespace verbatim::test {

/// The outputs of a case as the device holds them now, guards included, to compare later ones with.
class Repeats {
 public:
  explicit Repeats(GpuCase& of);
  ~Repeats();
  Repeats(const Repeats&) = delete;
  Repeats& operator=(const Repeats&) = delete;

  /// Runs both passes `times` times on outputs of NaN, calling `before(i)` ahead of run i, and
  /// returns in how many 16-bit words the outputs differed, over all runs. Waits at the end only.
  int64_t differing(const cuda::CudaBackend& backend, const SharedPlan& forward,
                    const SharedPlan& backward, void* stream, int64_t times,
                    const std::function<void(int64_t)>& before = {});

 private:
  GpuCase& case_;
  std::vector<void*> expected_;  // one an output
  unsigned long long* count_ = nullptr;
};

}  // namespace verbatim::test
