// Dealt plans on a cluster, in simulated time: what ranks wait for, and which strategy is fastest.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "verbatim/dist.h"
#include "verbatim/schedule.h"

namespace verbatim {

/// What carries the bytes of one rank, each way.
struct LinkSpeed {
  double gb_per_s = 0;    // 10^9 bytes a second; 0: bytes take no time
  double latency_us = 0;  // from the last byte sent to the message being there
  bool operator==(const LinkSpeed&) const = default;
};

/// Machines and what joins them; JSON with these names. Ranks r with equal r / ranks_per_node share
/// a node.
struct Cluster {
  std::string name;
  Machine machine;  // what one rank computes with; in JSON an object, or a name of make_machine()
  int32_t ranks_per_node = 1;
  LinkSpeed inside, between;  // nodes
  double call_us = 0;  // of a rank's host, to ask ahead for a launch, copy, transfer or additions
  double peer_call_us = 0;  // the same with Transfers::overlapped; in JSON as call_us if left out
  bool operator==(const Cluster&) const = default;
};
/// "h200x8", "h200x8-hdr" (docs/clusters.md), or "@file.json".
Cluster make_cluster(std::string_view spec);
std::string to_json(const Cluster& cluster);
/// Members that are left out keep their default. Throws Error naming a member that is unknown, of
/// another type, too small or too large.
Cluster cluster_from_json(const std::string& text);

/// Seconds of each launch, by rank and Compute step: predicted, or counted by replay().
using LaunchTimes = std::vector<std::vector<double>>;
/// By the machine's costs: its workers take the chains of a launch in turn, and each rank makes one
/// launch at a time. Waits for addends inside a launch are not in it.
LaunchTimes launch_times(const DistPlan& plan, const Machine& machine);
/// The same of a whole plan that one device runs as one launch.
double device_seconds(const Plan& plan, const Machine& machine);

enum class Transfers : uint8_t {
  in_turn,     // as the executor makes them: a rank computes, sends or waits for a message
  overlapped,  // as a transport that overlaps() does, of a plan that is dealt so: when the receiver
               // has room for it a message comes, beside what both ranks do meanwhile
};

/// Times of one rank, in seconds.
struct RankTime {
  double compute = 0;  // launches, and additions of sums
  double exposed = 0;  // until all ranks are done: copies, transfers and waits
  double sends = 0;    // its link out is busy
};
struct DistSimulation {
  double makespan = 0;  // seconds until all ranks are done
  std::vector<RankTime> ranks;
};
/// Plays the steps of all ranks. A rank sends one message at a time and takes one at a time, both
/// in the sequence of its steps; a message needs both links for its bytes. Same plan, same answer.
/// In turn, what is expected comes then.
/// Fills `timeline` when given: of each rank a worker that computes and one that sends, in
/// microseconds. Throws Error(invalid_plan) when a rank waits forever, Error when there are not as
/// many launches as times.
DistSimulation simulate(const DistPlan& plan, const Cluster& cluster, const LaunchTimes& launches,
                        Transfers transfers, Timeline* timeline = nullptr);

/// A strategy on a cluster.
struct Trial {
  struct Makespans {
    double in_turn = 0, overlapped = 0;  // seconds
  };
  DistOptions options;  // as chosen, with the sharding's name
  Makespans forward, backward;
  std::string refused;  // why it does not fit, with the nearest that does; else empty

  double in_turn() const { return forward.in_turn + backward.in_turn; }
};
/// options.strategy, dealt and played. `forward` and `backward` are plans of the same problem.
Trial try_strategy(const Plan& forward, const Plan& backward, const Mask& mask,
                   const DistOptions& options, const Cluster& cluster);
/// Every strategy, each with options.shard; sizes of groups and windows go to those that have them.
std::vector<Trial> try_strategies(const Plan& forward, const Plan& backward, const Mask& mask,
                                  const DistOptions& options, const Cluster& cluster);
/// The trial with the least time of both passes, transfers in turn; of equals the first.
const Trial& fastest(std::span<const Trial> trials);

}  // namespace verbatim
