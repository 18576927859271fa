#include "dist/processes.h"

#include <chrono>

namespace verbatim::dist {

void Processes::agree(const std::string& specification, const Error* bad_input) {
  asked_ = true;
  dist::agree(courier_, rank(), size(), specification, bad_input);
}

Processes::Result Processes::run(const DistPlan& plan, const LocalTensors& whole,
                                 const Backend& backend, const RunOptions& run) {
  ShardMemory shard(plan, rank(), backend, run);
  shard.take(whole);
  courier_.meet();
  const auto begin = std::chrono::steady_clock::now();
  const RankReport report = run_rank(plan, rank(), backend, shard.tensors(), run, courier_);
  courier_.meet();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return {seconds.count(), gather(plan, rank(), shard, report, whole, courier_)};
}

}  // namespace verbatim::dist
