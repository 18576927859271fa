// When a rank did what, by two clocks: that of its backend's work, and the host's.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "verbatim/dist.h"

namespace verbatim::dist {

/// What a rank does from here on, in any number of runs behind each other on one stream.
class StepRecord {
  using Clock = std::chrono::steady_clock;

 public:
  /// Waits for run.stream: there both clocks begin. `backend` must last as long.
  StepRecord(const Backend& backend, const RunOptions& run);

  struct Begin {
    std::unique_ptr<const Moment> moment;
    Clock::time_point called;
  };
  Begin begin() const;
  void end(Pass pass, StepTime::Kind kind, int64_t bytes, Begin begin);

  /// Everything so far, in its sequence. Waits for the work.
  std::vector<StepTime> times() const;
  RankReport report() const;

 private:
  struct Entry {
    StepTime time;  // without what has to be waited for
    std::unique_ptr<const Moment> begin, end;
  };
  double since_beginning(Clock::time_point at) const;

  const Backend& backend_;
  RunOptions run_;
  std::unique_ptr<const Moment> beginning_;
  Clock::time_point host_beginning_;
  std::vector<Entry> entries_;
};

}  // namespace verbatim::dist
