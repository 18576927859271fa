// Where plans come from: orders, placements, machine models, simulation and search.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "verbatim/plan.h"
#include "verbatim/timeline.h"

namespace verbatim {

/// A named way to order the sums of any head mask.
struct OrderInfo {
  const char* name;
  const char* summary;  // one line, for help and reports
  Pass pass;
  Level level;  // the strongest level the order keeps
};
std::span<const OrderInfo> orders();

/// The order `name` of `pass` for one KV head whose group has `group` query heads. Suffixes make
/// more and shorter tasks (docs/scheduling.md): in the backward "/split" one chain per query head
/// of the group, "/split:N" N chains of equal shares of it; in the forward "/split" one per 32
/// KV tiles of a row. Orders that take one KV tile after another have "/even:N" (N chains of tiles
/// that most rows see, of others as few as are not longer) and, last, "/rows:N" (chains of their
/// own for each N query positions). "auto" chooses for each sequence of the mask by
/// rule; `visits`, those of one query head of each group of the whole problem, let it choose for
/// what runs together, 0 for whatever may. Every sequence is ordered as if it were alone. Throws
/// Error naming the nearest order when the name is unknown.
std::shared_ptr<const HeadOrder> make_order(Pass pass, std::string_view name,
                                            std::shared_ptr<const TileMap> tiles, int32_t group,
                                            int64_t visits = 0);

/// A named way to deal tasks to workers (docs/placements.md).
struct PlacementInfo {
  const char* name;
  const char* summary;
};
std::span<const PlacementInfo> placements();
/// Who does the tasks of all heads, and when. `heads[h]` is the order of head h = b * kv_heads +
/// kv_head. Throws Error naming the nearest placement when the name is unknown, or when there are
/// not 1 to 2^20 workers.
Placement make_placement(std::string_view name,
                         std::span<const std::shared_ptr<const HeadOrder>> heads, int32_t workers);

/// A machine as the simulator sees it. Times are cycles; JSON with these names.
struct Machine {
  std::string name;
  int32_t workers = 1;  // resident workers by default
  // DASH's model (docs/machines.md): every visit computes for `compute` cycles, then reduces for
  // `reduce`. A calibrated machine has `overlap` true: the reduction of a visit runs behind the
  // next visits' compute as long as one of `buffers` is free.
  bool overlap = false;
  bool ordered = true;         // false: addends enter as they come, as non-deterministic kernels do
  double compute = 1;          // a full tile of the reference shape, backward
  double forward = 1;          // the forward's share of `compute`
  double reduce = 0;           // adding a tile of dQ whose rows are in L2
  double compute_partial = 1;  // factor for a tile that needs masking
  TileShape reference_tile{0, 0};  // costs grow with tile area and head dim from here;
  int64_t reference_dim = 0;       // 0: they are the same for every shape
  int32_t buffers = 1;
  double store = 0;           // end of `compute` during which a visit fills its buffer
  double signal_latency = 0;  // from the end of a reduction to the flag another worker sees; below
                              // 0 when the writer is busy for longer than the hand-off
  double chain_start = 0;     // loading the kept tile, filling the pipeline
  double chain_end = 0;       // writing the kept tile's results
  double chain_share = 0;     // instead of chain_end: adding them to a shared tile
  double launch = 0;          // before the first task
  double jitter = 0;          // spread of a visit's compute time, 0 to 1 of it; a fixed generator's
  double l2_bytes = 0;        // 0: no L2 model
  double bandwidth = 0;  // bytes per cycle to memory, shared by all workers: rows not in L2 wait
  double clock_ghz = 1;

  /// DASH's model with these costs, and nothing else that takes time.
  static Machine paper(double compute, double reduce, int32_t workers);
  bool operator==(const Machine&) const = default;
};
/// "h200", "h200:WORKERS", "h200:WORKERS,GHZ", "cpu", "paper:C,R", or "@file.json". Throws Error
/// naming the nearest for another, and as machine_from_json().
Machine make_machine(std::string_view spec);
std::string to_json(const Machine& machine);
/// Fields that are left out keep their default. Throws Error naming a field that is unknown, of
/// another type, too small or too large.
Machine machine_from_json(const std::string& text);

/// What simulate() found. Times are cycles of the machine.
struct Simulation {
  double makespan = 0;
  double lower_bound = 0;  // max(work / workers, longest task)
  double work = 0;         // sum of all busy time
  double stall = 0;        // time spent waiting for addends, summed over workers
  double idle = 0;         // time without a task before the makespan, summed over workers
};
/// Runs `plan` on `machine` with plan.placement.workers workers. Same plan, same answer. Fills
/// `timeline` when given (large plans: megabytes). Throws Error(invalid_plan) on deadlock.
Simulation simulate(const Plan& plan, const Machine& machine, Timeline* timeline = nullptr);

/// The scheduling graph of DASH section 3.1: two edges (compute, reduce) per visit, zero-weight
/// edges for worker sequence and addend order. Small plans only (1M nodes).
struct Dag {
  struct Edge {
    int32_t from, to;
    double weight;
  };
  int32_t nodes = 0;  // node 0 is the source, node 1 the sink
  std::vector<Edge> edges;
  double critical_path() const;  // throws Error(invalid_plan) on a cycle
};
Dag make_dag(const Plan& plan, const Machine& machine);

/// Placements that `verbatim tune` measured to be the fastest on one device, by memo_key(). Reading
/// one is a pure function of the problem, and changes no bit.
struct PlacementMemo {
  std::string device;  // where they were measured
  std::map<std::string, std::string> placements;
  bool operator==(const PlacementMemo&) const = default;
};
/// What a placement was measured for: pass, fingerprint, number of heads and of workers.
std::string memo_key(const Plan& plan, int32_t workers);
std::string to_json(const PlacementMemo& memo);
/// Throws Error naming the member that is missing, has another type or names no placement.
PlacementMemo memo_from_json(const std::string& text);

/// How a plan is asked for. Empty or zero means: choose.
struct PlanOptions {
  Pass pass = Pass::backward;
  std::string order = "auto";  // a name of orders(), or "auto": by rule
  std::string placement = "auto";
  std::string arithmetic;  // family of arithmetics() up to which kernels may be taken; empty: the
                           // device's, and without a device "cpu"
  Level level = Level::invariant;
  TileShape tile{0, 0};   // a 0: that of default_tile()
  int32_t workers = 0;    // 0: the machine's
  int32_t residents = 0;  // workers that run at once; 0: as many as the waits need
  Machine machine;        // for `auto` placement and predictions
  std::shared_ptr<const PlacementMemo> memo;  // asked first for `auto` placement, or null
  bool operator==(const PlanOptions&) const = default;
};
/// The tile shape of the contract: a function of pass and head dims only (docs/determinism.md).
TileShape default_tile(const Problem& problem, Pass pass);
/// Classify, order, place, verify. Where tasks wait for more others than `workers` or `residents`
/// can run at once, their chains are cut in pieces that add up in the same order: the same bits,
/// with residency 1. That is so of what "auto" chooses; a rotating order under a mask with gaps
/// that cannot be cut stays whole for `residents`. Throws Error naming what does not fit: the
/// mask's lengths, a batch or number of KV heads of the mask that is neither 1 nor the problem's, a
/// negative size, `workers` too few for an order that cannot be cut, a level that it cannot keep
/// (with the nearest).
Plan make_plan(const Problem& problem, const Mask& mask, const PlanOptions& options);

/// make_plan() remembered: equal arguments get the plan made for them before, one object, so that
/// a device finds it again too. The 64 last used are kept, as many as take 1 GiB of the host, and
/// two of any size. Safe to call from several threads.
std::shared_ptr<const Plan> cached_plan(const Problem& problem, const Mask& mask,
                                        const PlanOptions& options);

/// One line of `verbatim plan --order all`: an order, its plan and what the machine makes of it.
struct Candidate {
  Plan plan;
  Simulation simulation;
  double plan_seconds = 0;  // time to build the plan, without the simulation
};
/// Every order that keeps options.level (placement: the best for each), fastest first. Throws Error
/// as make_plan().
std::vector<Candidate> search(const Problem& problem, const Mask& mask, const PlanOptions& options);

}  // namespace verbatim
