// What happened when: one type for the simulators, the CPU executor and the device recorder.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace verbatim {

struct TimelineEvent {
  enum class Kind : uint8_t { compute, wait, reduce, start, finish, transfer };
  Kind kind;
  int32_t worker;
  int32_t head;             // b * kv_heads + kv_head; -1 when it belongs to no head
  int32_t q_head;           // inside the group
  int32_t q_tile, kv_tile;  // -1 for start and finish of a chain
  double begin, end;        // in `unit`
};

struct Timeline {
  std::string source;  // "simulated h200", "measured cpu"
  std::string unit;    // "cycles" or "us"
  int32_t workers = 0;
  std::vector<TimelineEvent> events;
  std::vector<std::string> names{};  // of workers; empty: their numbers
};

/// Chrome Trace Event JSON (ui.perfetto.dev opens it): one process a timeline, one track a worker.
std::string to_perfetto_json(std::span<const Timeline> timelines);

}  // namespace verbatim
