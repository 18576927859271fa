// Other work on the GPU while a test runs.
#pragma once

namespace verbatim::test {

/// Whether the Hopper backward of this program has random delays.
extern const bool kDelayed;

/// Starts `ctas` CTAs on `stream` that each hold a multiprocessor's shared memory for a while that
/// depends on `seed`: launches beside them get fewer multiprocessors, at other times.
void start_load(int ctas, unsigned seed, void* stream);

/// Whether a plain kernel launched now ends within a second.
bool kernels_run();

/// Multiprocessors that others do not get: a CTA on each, which runs until the object goes, or for
/// five seconds.
class Occupied {
 public:
  enum class By { all_shared, most_shared };  // no other CTA fits; no Hopper backward's does
  /// Returns when all of the CTAs run. Kernels that are launched meanwhile must have run before:
  /// loading one may wait for the device.
  explicit Occupied(int multiprocessors, By by = By::all_shared);
  ~Occupied();
  Occupied(const Occupied&) = delete;
  Occupied& operator=(const Occupied&) = delete;

  /// Ends the first `multiprocessors` CTAs.
  void leave(int multiprocessors);
  /// Whether the CTAs still run.
  bool holds() const;

 private:
  void* stream_ = nullptr;
  int count_ = 0;
  volatile int* flags_ = nullptr;  // in pinned memory: how many are to stop, then which CTAs run
};

}  // namespace verbatim::test
