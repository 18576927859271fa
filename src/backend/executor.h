// Runs the tasks of a placement on threads, adding into every sum in the order of the plan.
//
// A virtual worker is a resumable state: the task it is in and the accumulators of its chain. A
// thread runs a worker until its next addend is not due, parks it and takes another; the thread
// that completes the addend before it makes it ready again. Nothing spins, and any plan without a
// cycle finishes with any number of threads. A plan with a cycle is found when nothing can run.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "verbatim/plan.h"
#include "verbatim/run.h"
#include "verbatim/timeline.h"

namespace verbatim {

/// Where a result enters a sum: it may be added when addends 0 .. addend - 1 are in.
struct Turn {
  int64_t sum = -1;  // number of the sum; -1: the task is finished, nothing is to be added
  int32_t addend = 0;
  bool adds = true;  // false: the sum is only read, in this turn
};

using Clock = std::chrono::steady_clock;

/// One virtual worker. Used by one thread at a time.
class Worker {
 public:
  virtual ~Worker() = default;
  virtual void start(const PlacedTask& task) = 0;
  /// Computes up to the next result that must wait for its turn.
  virtual Turn compute() = 0;
  /// Adds that result; called when its turn has come.
  virtual void add() = 0;

  void record_into(std::vector<TimelineEvent>* events) { events_ = events; }
  bool recording() const { return events_ != nullptr; }
  Clock::time_point now() const { return recording() ? Clock::now() : Clock::time_point(); }
  /// Notes what happened at the current position from `begin` until now.
  void record(TimelineEvent::Kind kind, Clock::time_point begin);

 protected:
  TimelineEvent at_{};  // head, q_head, q_tile and kv_tile of the current visit

 private:
  std::vector<TimelineEvent>* events_ = nullptr;
};

/// Runs every task of `plan`. `added` holds the addends that are in each of the sums before
/// the first task: 0, but for pieces of a plan; `make_worker` is called for each virtual worker
/// that is needed at once. An exception of a worker ends the run and is thrown here; a plan that
/// cannot go on is an Error(invalid_plan).
void execute(const Plan& plan, std::vector<int32_t> added,
             const std::function<std::unique_ptr<Worker>()>& make_worker, const RunOptions& run);

/// Threads that a run uses: as asked, or all cores, but not more than tasks.
int thread_count(const Plan& plan, const RunOptions& run);
/// Virtual workers that are started while others can run: some to spare, so that a thread whose
/// worker waits finds another one.
int64_t preferred_workers(const Plan& plan, int threads);

}  // namespace verbatim
