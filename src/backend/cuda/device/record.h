// What a recording kernel leaves behind: who did what from when to when.
#pragma once

#include <cstdint>

namespace verbatim::cuda {

/// One event, in clock cycles of its multiprocessor.
struct Record {
  int64_t begin, end;
  int32_t kind;  // TimelineEvent::Kind
  int32_t row;   // (b * q_heads + h) * max_q_tiles + q_tile; -1: none
  int32_t key;   // (b * kv_heads + kv_head) * max_kv_tiles + kv_tile
};

/// The two ends of a CTA on its multiprocessor's clock and on the device's nanosecond timer: what
/// makes the clocks of several comparable.
struct RecordClock {
  int64_t begin, begin_ns, end, end_ns;
};

/// Memory for the records of a launch. A CTA has kTracks writers, each with its own list.
struct RecordView {
  static constexpr int32_t kTracks = 3;

  Record* records;      // [CTAs][kTracks][capacity]; null: nothing is recorded
  int32_t* counts;      // [CTAs][kTracks]; what exceeds `capacity` was counted, not kept
  RecordClock* clocks;  // [CTAs]
  int32_t capacity;
};

}  // namespace verbatim::cuda
