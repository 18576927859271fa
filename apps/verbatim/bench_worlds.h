// Cases of the benchmark dealt to ranks, beside one device.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "bench/attention.h"
#include "dist/processes.h"
#include "report/table.h"
#include "result.h"
#include "world.h"

namespace verbatim::app {

/// Both passes of a case.
struct WholePlans {
  std::shared_ptr<const Plan> forward, backward;
  const Mask& mask;
};

struct AskedWorlds {
  const WorldOptions& world;  // or several
  const std::string& device;
  int repeats, threads;  // 0: as many as the machine or the process has
};

/// What ranks made of a case: the member `dist`, without a world where it does not fit. With a
/// cluster the same is dealt overlapped, too.
struct Dealt {
  Json found;
  std::unique_ptr<World> world, overlapped;
};

/// Throws where run_worlds() will, before anything is measured.
void check_worlds(const WorldOptions& asked, const Problem& problem);
/// Every world that is asked for, run as often as its bits are compared with one device's.
/// Processes but the first only take part, and find nothing. Throws Error where the only one, or
/// each of several, does not fit, and what else goes wrong in any.
std::vector<Dealt> run_worlds(const Backend& backend, const bench::Device& on,
                              const WholePlans& plans, const AskedWorlds& asked,
                              dist::Processes* processes);
/// With what the row measured of one device, played on the cluster that `world` names.
Json describe(const Dealt& dealt, const WorldOptions& world, const Json& row);
/// A line a case, world and pass; empty without --world.
report::Table dist_table_of(const Json& result);

}  // namespace verbatim::app
