// The memory of a recording launch, and the timeline that comes out of it.
#pragma once

#include "backend/cuda/device/record.h"
#include "backend/cuda/runtime.h"
#include "verbatim/plan.h"
#include "verbatim/timeline.h"

namespace verbatim::cuda {

class Recording {
 public:
  /// Room for what `plan` notes on `device`, four times its share on each CTA.
  Recording(const Device& device, const Plan& plan, cudaStream_t stream);
  RecordView view() const { return view_; }
  /// Waits for the stream and fills `timeline`, in microseconds from the first CTA's start. The
  /// extents are HandOff's.
  void collect(const Plan& plan, int32_t max_q_tiles, int32_t max_kv_tiles,
               Timeline& timeline) const;

 private:
  int32_t blocks_;
  cudaStream_t stream_;
  int64_t counts_at_, clocks_at_, bytes_;
  Scratch memory_;
  RecordView view_{};
};

}  // namespace verbatim::cuda
