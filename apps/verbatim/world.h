// A problem dealt to ranks, as --world asks for.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "options.h"
#include "report/table.h"
#include "result.h"
#include "tensors.h"
#include "verbatim/dist.h"

namespace verbatim::app {

/// Ranks and how the problem is dealt to them.
struct WorldOptions {
  std::string world;  // "replay:N"; empty: one device
  std::string strategy = "balanced", shard;
  int32_t ulysses_size = 0, ring_window = 0;

  void add_to(CLI::App& command);
  bool given() const { return !world.empty(); }
  /// Throws Error naming the option that is no such world, or has no meaning without one.
  DistOptions make() const;
};

/// Both passes, dealt and proved.
class World {
 public:
  World(const Plan& forward, const Plan& backward, const Mask& mask, const DistOptions& options);

  void forward(const Tensors& tensors, const std::string& device, const RunOptions& run);
  void backward(const Tensors& tensors, const std::string& device, const RunOptions& run);
  /// The member `dist` of these passes, with what the last run of each counted.
  Json describe(const std::vector<Pass>& passes) const;
  /// The same, a line a rank.
  report::Table table(const std::vector<Pass>& passes) const;
  std::string summary() const;
  /// How long planning took, beyond that of one device.
  std::string timing() const;

 private:
  const DistPlan& plan(Pass pass) const { return pass == Pass::forward ? forward_ : backward_; }

  DistPlan forward_, backward_;
  double dealing_seconds_ = 0, proving_seconds_ = 0;
  std::map<Pass, std::vector<RankReport>> reports_;  // of passes that ran
};

}  // namespace verbatim::app
