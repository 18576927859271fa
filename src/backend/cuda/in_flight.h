// Work that streams have been given and may not have ended.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "backend/cuda/runtime.h"

namespace verbatim::cuda {

/// The end of all that `stream` had been given when this was made. A stream's handle cannot stand
/// for it: cudaStreamPerThread is one in every thread, and of a destroyed stream another gets it.
class End {
 public:
  End(const Device& device, cudaStream_t stream);
  ~End();
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  bool reached() const;
  /// What is given to `stream` from now on starts behind the end.
  void hold_back(cudaStream_t stream) const;

 private:
  int device_;
  cudaEvent_t event_;  // of a pool: making one costs more than a launch
};

/// One device's launches whose CTAs wait for one another, so that never three of them compete for
/// multiprocessors. Each needs at most half of its stream's, or starts as a whole; why two then end
/// is in docs/waits.md. A lock is held from the first wait of a launch until its end
/// is known, so the order of the host's calls is one in which all of them can run.
class Turnstile {
 public:
  /// `alone`: it may need all that there is, and runs beside none of them.
  Turnstile(const Device& device, cudaStream_t stream, bool alone);
  ~Turnstile();
  Turnstile(const Turnstile&) = delete;
  Turnstile& operator=(const Turnstile&) = delete;

  /// Behind the launch.
  void passed(std::shared_ptr<const End> end);

 private:
  struct Lane;
  Lane& lane_;
  bool alone_;
};

}  // namespace verbatim::cuda
