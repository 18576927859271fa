// What a cluster makes of a dealt problem, in simulated time.
#pragma once

#include <string>
#include <vector>

#include "options.h"
#include "report/table.h"
#include "result.h"
#include "verbatim/cluster.h"
#include "world.h"

namespace verbatim::app {

/// How a problem is dealt, and of --strategy auto what was tried.
struct Choice {
  DistOptions options;
  std::vector<Trial> trials;
  std::string cluster;  // that they were tried on

  /// Adds member `tried` to member `dist`, where strategies were tried.
  void describe(Json& dist) const;
  /// A line a strategy, and what they are; empty where none were tried.
  std::string text() const;
};
/// Throws Error naming the option that is no such world or cluster.
Choice choose(const WorldOptions& asked, const Plan& forward, const Plan& backward,
              const Mask& mask);
Choice choose(const WorldOptions& asked, const Attention& attention);

/// --strategy on --cluster, or the fastest. Throws Error naming the option that is no such world or
/// cluster.
Trial try_world(const WorldOptions& asked, const Plan& forward, const Plan& backward,
                const Mask& mask);
Json describe(const Trial& trial);

/// Times of a pass.
struct Launches {
  LaunchTimes times;
  bool measured = false;      // else the machine's
  double device_seconds = 0;  // of one device that makes the whole pass; 0: not known
};
Launches predicted_launches(const DistPlan& plan, const Machine& machine);
/// Of `path`, a result of run, or of bench on a cluster, with the same plan and dealing. Throws
/// Error naming what differs.
Launches read_launches(const std::string& path, const DistPlan& plan);

/// One pass of a dealt problem, in turn and DistOptions::overlapped, on a cluster. Both stay their
/// owner's.
class Prediction {
 public:
  Prediction(const DistPlan& plan, const DistPlan& overlapped, const Cluster& cluster,
             Launches launches);

  /// Adds what was simulated to the pass and its ranks.
  void describe(Json& pass) const;
  /// Transfers in turn, then overlapped.
  std::vector<Timeline> timelines() const;
  /// A line a rank, and what follows for all.
  std::string text() const;

 private:
  const DistPlan &plan_, &overlapped_plan_;
  Cluster cluster_;
  Launches launches_;
  LaunchTimes overlapped_launches_;
  DistSimulation in_turn_, overlapped_;

  /// The share of one device's rate that each rank has.
  double rate(const DistSimulation& simulation) const;
  double compute_balance() const;
  double bytes_balance() const;
};

}  // namespace verbatim::app
