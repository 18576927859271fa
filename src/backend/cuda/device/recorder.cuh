// Recorder policies of kernels: one that notes events, one that is not there. A third, of the
// tests, disturbs: it stops threads for random whiles (tests/backend/cuda/delays.cuh).
#pragma once

#include "backend/cuda/device/clock.cuh"
#include "backend/cuda/device/record.h"
#include "verbatim/timeline.h"

namespace verbatim::cuda {

using RecordKind = TimelineEvent::Kind;

/// Of kernels as they run: compiles to nothing.
struct NoRecorder {
  __device__ NoRecorder(const RecordView&, int32_t, bool) {}
  __device__ int64_t now() const { return 0; }
  __device__ void note(RecordKind, int64_t, int32_t, int32_t) {}
  __device__ static void start_clock(const RecordView&) {}
  __device__ static void stop_clock(const RecordView&) {}
  __device__ static void disturb() {}
};

/// Notes the events of one track; only the thread that is `active` does.
class Recorder {
 public:
  __device__ Recorder(const RecordView& view, int32_t track, bool active)
      : list_(blockIdx.x * RecordView::kTracks + track), view_(view), active_(active) {}

  __device__ int64_t now() const { return clock64(); }

  /// Something went on from `begin` until now.
  __device__ void note(RecordKind kind, int64_t begin, int32_t row, int32_t key) {
    if (!active_) return;
    if (count_ < view_.capacity) {
      view_.records[int64_t{list_} * view_.capacity + count_] = {
          begin, clock64(), static_cast<int32_t>(kind), row, key};
    }
    view_.counts[list_] = ++count_;
  }

  /// By one thread of the CTA, first and last.
  __device__ static void start_clock(const RecordView& view) {
    view.clocks[blockIdx.x].begin = clock64();
    view.clocks[blockIdx.x].begin_ns = nanoseconds();
  }
  __device__ static void stop_clock(const RecordView& view) {
    view.clocks[blockIdx.x].end = clock64();
    view.clocks[blockIdx.x].end_ns = nanoseconds();
  }
  __device__ static void disturb() {}

 private:
  int32_t list_, count_ = 0;
  RecordView view_;
  bool active_;
};

}  // namespace verbatim::cuda
