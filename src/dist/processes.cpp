#include "dist/processes.h"

#include <algorithm>
#include <chrono>

namespace verbatim::dist {

void Processes::agree(const std::string& specification, const Error* bad_input) {
  asked_ = true;
  dist::agree(courier_, rank(), size(), specification, bad_input);
}

Processes::Result Processes::run(const DistPlan& plan, const LocalTensors& whole,
                                 const Backend& backend, const RunOptions& run) {
  ShardMemory shard(plan, rank(), backend, run);
  ThroughHost transport(courier_, memory_, backend, run);
  shard.take(whole);
  courier_.meet();
  const auto begin = std::chrono::steady_clock::now();
  StepRecord record(backend, run);
  run_rank(plan, rank(), backend, shard.tensors(), run, transport, {.record = &record});
  backend.synchronize(run);
  courier_.meet();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  RankReport report = record.report();
  report.seconds = took.count();
  Result result{0, gather(plan, rank(), shard, report, whole, transport)};
  for (const RankReport& each : result.reports)  // the first to start has seen all of it
    result.seconds = std::max(result.seconds, each.seconds);
  backend.synchronize(run);
  return result;
}

}  // namespace verbatim::dist
