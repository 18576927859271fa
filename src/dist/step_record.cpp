#include "dist/step_record.h"

#include <utility>

namespace verbatim {

std::string_view to_string(StepTime::Kind kind) {
  constexpr std::string_view kNames[] = {"pack", "send",   "expect", "receive", "unpack",
                                         "copy", "settle", "launch", "add"};
  return kNames[static_cast<size_t>(kind)];
}

namespace dist {

StepRecord::StepRecord(const Backend& backend, const RunOptions& run)
    : backend_(backend), run_(run) {
  backend.synchronize(run);
  beginning_ = backend.moment(run);
  host_beginning_ = Clock::now();
}

double StepRecord::since_beginning(Clock::time_point at) const {
  return std::chrono::duration<double>(at - host_beginning_).count();
}

StepRecord::Begin StepRecord::begin() const {
  const auto called = Clock::now();
  return {backend_.moment(run_), called};
}

void StepRecord::end(Pass pass, StepTime::Kind kind, int64_t bytes, Begin begin) {
  auto end = backend_.moment(run_);
  const StepTime time{.pass = pass,
                      .kind = kind,
                      .bytes = bytes,
                      .called = since_beginning(begin.called),
                      .issued = since_beginning(Clock::now())};
  entries_.push_back({time, std::move(begin.moment), std::move(end)});
}

std::vector<StepTime> StepRecord::times() const {
  std::vector<StepTime> times;
  for (const Entry& entry : entries_) {
    StepTime& time = times.emplace_back(entry.time);
    time.begin = entry.begin->seconds_since(*beginning_);
    time.end = entry.end->seconds_since(*beginning_);
  }
  return times;
}

RankReport StepRecord::report() const {
  RankReport report;
  for (const StepTime& time : times()) {
    const double seconds = time.end - time.begin;
    if (time.kind == StepTime::Kind::send) report.sent_bytes += time.bytes;
    if (time.kind == StepTime::Kind::launch) report.launch_seconds.push_back(seconds);
    if (time.kind == StepTime::Kind::launch || time.kind == StepTime::Kind::add)
      report.compute_seconds += seconds;
  }
  return report;
}

}  // namespace dist
}  // namespace verbatim
