// A problem dealt to ranks, as --world asks for.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "dist/processes.h"
#include "options.h"
#include "report/table.h"
#include "result.h"
#include "tensors.h"
#include "verbatim/cluster.h"
#include "verbatim/dist.h"

namespace verbatim::app {

/// Ranks and how the problem is dealt to them.
struct WorldOptions {
  std::string world;  // "replay:N", "local:N" or "mpi"; empty: one device
  std::string strategy = "balanced", shard;
  std::string cluster;  // empty: not asked for, kCluster
  int32_t ulysses_size = 0, ring_window = 0;
  std::optional<double> timeout;  // seconds

  static constexpr const char* kAuto = "auto";  // strategy: the fastest on the cluster
  static constexpr const char* kCluster = "h200x8";

  /// `runs`: the command runs what it deals, and so may wait.
  void add_to(Command command, bool runs);
  bool given() const { return !world.empty(); }
  /// kAuto, then those that there are.
  static std::vector<std::string> strategy_names();
  /// One of each world and strategy where several are named: "replay:2,4", "ring,usp", "all".
  std::vector<WorldOptions> each() const;
  Cluster on() const { return make_cluster(cluster.empty() ? kCluster : cluster); }
  /// Whether ranks are processes: those of MPI.
  bool has_processes() const { return given() && !world.starts_with(kReplay); }
  /// What runs the ranks: "replay" or "mpi".
  const char* engine() const { return has_processes() ? "mpi" : "replay"; }
  /// CPU threads of a process that were not asked for otherwise: 0, or its part of the machine's.
  int threads() const;
  /// `device` as this process has it: ranks of a machine take turns over its GPUs, where it is
  /// "cuda".
  std::string device_of(const std::string& device) const;
  /// Throws Error naming the option that is no such world, or does not fit it.
  DistOptions make() const;
  /// Throws Error when ranks cannot run so: with `programs` in place of the device's kernels, or
  /// with a cluster where nothing is simulated, for the command itself does not.
  void check(bool programs, bool simulates) const;

 private:
  static constexpr std::string_view kReplay = "replay:", kLocal = "local:";
};

/// Both passes, dealt and proved.
class World {
 public:
  /// `engine` is the name of what would run it.
  World(const Plan& forward, const Plan& backward, const Mask& mask, const DistOptions& options,
        std::string engine = "replay");

  /// What all processes must have alike, as dist::agree() has it: versions, problem, mask, both
  /// passes, how they are dealt, the tensors if they are not made from their seeds, and what the
  /// command does with them.
  std::string specification(const Mask& mask, const Tensors* tensors, const Json& command) const;
  /// Runs a pass in `processes`, else replays it. Returns seconds. Only at rank 0 are the outputs
  /// whole.
  double run(Pass pass, const ForwardTensors& forward, const BackwardTensors& backward,
             const std::string& device, const RunOptions& options,
             dist::Processes* processes = nullptr);
  /// The member `dist` of these passes, with what their runs counted and medians of their times.
  Json describe(const std::vector<Pass>& passes) const;
  /// The same, a line a rank.
  report::Table table(const std::vector<Pass>& passes) const;
  std::string summary() const;
  /// How long planning took, beyond that of one device.
  std::string timing() const;
  const DistPlan& plan(Pass pass) const { return pass == Pass::forward ? forward_ : backward_; }
  /// What the launches of its last run took.
  LaunchTimes launches(Pass pass) const;

 private:
  DistPlan forward_, backward_;
  std::string engine_;
  double dealing_seconds_ = 0, proving_seconds_ = 0;
  struct Runs {
    std::vector<double> seconds;
    std::vector<std::vector<RankReport>> reports;  // by run and rank
    /// The median of what this rank computed.
    double compute_ms(int32_t rank) const;
    /// ... and of the rest of its runs, where ranks are processes.
    double exposed_ms(int32_t rank) const;
  };
  std::map<Pass, Runs> runs_;
};

/// Deals a problem as `options` say and runs it, by the engine of `asked`, on outputs that start as
/// NaN: the forward, and the backward unless `passes` is the forward alone. Processes agree first.
World run_in_world(const Attention& attention, Tensors& tensors, Passes passes,
                   const std::string& device, const DistOptions& options, const WorldOptions& asked,
                   dist::Processes* processes);

}  // namespace verbatim::app
