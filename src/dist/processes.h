// Ranks as processes: each calls the same functions of this class, in the same sequence.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dist/ranks.h"
#include "dist/through_host.h"
#include "dist/wire.h"

namespace verbatim::dist {

class Processes {
 public:
  /// `timeout`: seconds that a rank waits for a message or for the others to be ready.
  Processes(Wire& wire, double timeout) : wire_(wire), courier_(wire, timeout) {}
  int32_t rank() const { return wire_.rank(); }
  int32_t size() const { return wire_.size(); }

  /// dist::agree() among all processes.
  void agree(const std::string& specification, const Error* bad_input = nullptr);
  /// Whether agree() was called.
  bool asked() const { return asked_; }

  /// What one run of a pass took.
  struct Result {
    double seconds = 0;               // from when all ranks were ready until all were done, at 0
    std::vector<RankReport> reports;  // of all ranks, at rank 0
  };
  /// Runs `plan`, which has as many ranks. `whole` are tensors of the problem: a rank reads its
  /// shard of the inputs and writes that of the outputs, rank 0 gets all of them.
  Result run(const DistPlan& plan, const LocalTensors& whole, const Backend& backend,
             const RunOptions& run);

 private:
  Wire& wire_;
  Courier courier_;
  HostMemory memory_;
  bool asked_ = false;
};

}  // namespace verbatim::dist
