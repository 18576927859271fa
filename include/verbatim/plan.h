// The waist of the library: which worker does which tiles in which order, and where each tile
// enters the sum of its row. Everything above produces plans, everything below consumes them.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "verbatim/contract.h"
#include "verbatim/mask.h"
#include "verbatim/problem.h"
#include "verbatim/runs.h"

namespace verbatim {

/// What stays equal when the same problem runs again (docs/determinism.md), weakest first.
enum class Level {
  not_guaranteed,
  run_to_run,  // same machine, same problem: same bits under any load
  gpu_to_gpu,  // every sum's order is a function of the whole problem, never of the device
  invariant,   // ... of one KV head's mask and group, tile shape, head dims, dtype, softmax scale
               // (which chooses the arithmetic) and order name only
};
/// The name above: "invariant".
std::string_view to_string(Level level);
/// Throws Error when there is no such level.
Level level_from_string(std::string_view name);

/// Visits during which one tile stays in registers: a KV tile with dK and dV in the backward, the
/// query tile of one head with its online softmax in the forward (visit order = order of the sum).
/// Several chains may share a tile (a split group or a split row); their results then meet in the
/// order of `addend`: partial dK and dV are added, partial (O, LSE) are merged. Every tile of the
/// kept axis has a chain; one without runs writes the zeros (LSE: -inf) of a tile that sees
/// nothing.
struct Chain {
  int32_t tile = 0;
  int32_t run_begin = 0, run_end = 0;  // into HeadOrder::runs
  int32_t q_head = 0;                  // forward: the query head inside the group
  int32_t addend = 0, addends = 1;     // this chain's place among those that share the tile
  /// Backward: pieces of one chain, cut so that fewer workers can run the order, lie behind each
  /// other in HeadOrder::chains. Each but the first continues the one before: it waits at its start
  /// for that one's dK and dV, and goes on from them. Each but the last pauses. Where other chains
  /// have added to the tile before them, what they pass on lies apart from the tile's sum, and the
  /// last piece adds it. `addend` counts pieces like chains.
  bool continues = false, pauses = false, apart = false;
  bool operator==(const Chain&) const = default;
};

/// Chains that one worker does back to back; the unit that a placement moves.
struct Task {
  int32_t chain_begin = 0, chain_end = 0;  // into HeadOrder::chains
  bool operator==(const Task&) const = default;
};

/// The order of every sum of one KV head and its group of query heads: this fixes the bits.
struct HeadOrder {
  Pass pass = Pass::backward;
  std::string name;  // "descending", "shift", ...
  std::shared_ptr<const TileMap> tiles;
  int32_t group = 1;  // query heads per KV head
  Runs runs;
  std::vector<Chain> chains;
  std::vector<Task> tasks;           // each chain in one, in the sequence to issue them in
  std::vector<int32_t> row_addends;  // backward: addends of each dQ row, [q_tiles]
  // Of orders "/rows:N" as made, not of plans that were read: the query tiles at which chunks
  // begin.
  std::vector<int32_t> row_chunks;

  /// Tiles that all chains visit, or one; those of every query head count.
  int64_t visits() const;
  int64_t visits(const Chain& chain) const;
  /// Of the host's: a device holds the runs one by one.
  int64_t bytes() const;
  /// Runs::for_each_part() of the runs of a chain.
  template <class F>
  void for_each_part(const Chain& chain, F&& f) const {
    runs.for_each_part(chain.run_begin, chain.run_end, f);
  }
};

/// A task of one head: entry of a placement.
struct PlacedTask {
  int32_t head;  // b * kv_heads + kv_head
  int32_t task;  // into the head's HeadOrder::tasks
  bool operator==(const PlacedTask&) const = default;
};

/// A list of which copies share the memory until one of them is edited: of a long problem it is
/// most of a plan.
class PlacedTasks {
 public:
  PlacedTasks() : list_(std::make_shared<const std::vector<PlacedTask>>()) {}
  PlacedTasks(std::vector<PlacedTask> list)  // NOLINT: a list is what it says
      : list_(std::make_shared<const std::vector<PlacedTask>>(std::move(list))) {}
  PlacedTasks(std::initializer_list<PlacedTask> list) : PlacedTasks(std::vector(list)) {}

  const std::vector<PlacedTask>& list() const { return *list_; }
  auto begin() const { return list().begin(); }
  auto end() const { return list().end(); }
  size_t size() const { return list().size(); }
  const PlacedTask& operator[](size_t i) const { return list()[i]; }
  /// Lets f(std::vector<PlacedTask>&) change them.
  template <class F>
  void edit(F&& f) {
    std::vector<PlacedTask> changed = list();
    f(changed);
    *this = std::move(changed);
  }

 private:
  std::shared_ptr<const std::vector<PlacedTask>> list_;
};

/// Who does what when: this fixes only the time. With a queue, a free worker takes the next task
/// of the list; else worker w does tasks [worker_begin[w], worker_begin[w + 1]) in sequence.
struct Placement {
  std::string name;  // "queue", "longest_first", "staggered:11", ...
  bool queue = true;
  int32_t workers = 1;
  std::vector<int32_t> worker_begin;  // workers + 1 offsets; empty for a queue
  PlacedTasks tasks;
};

/// Everything a backend needs besides tensors. Immutable once made; shared freely.
struct Plan {
  Pass pass = Pass::backward;
  Problem problem;
  Level level = Level::invariant;
  std::string arithmetic;  // the id of one of arithmetics(): only its kernels may run the plan
  std::vector<std::shared_ptr<const HeadOrder>> orders;  // distinct
  std::vector<int32_t> order_of_head;                    // [batch * kv_heads] into `orders`
  Placement placement;
  /// Workers that must be running at once so that no wait can last forever; found by verify().
  int32_t residency = 1;

  const HeadOrder& order(int32_t head) const { return *orders[order_of_head[head]]; }
  /// Bytes of runs, chains, tasks and placement on the host, where equal runs are kept once.
  int64_t bytes() const;
  /// Of its tiles on the host, without slices, which are the mask's.
  int64_t tile_bytes() const;
  /// 16 hex digits over what fixes the order of every sum of the pass: contract, arithmetic, tile
  /// edges, slices, distinct orders, group, head dims, dtype, under dropout where sequences start.
  /// Level, names, placement, batch, head counts, scale, softcap, dropout and seed are not in it:
  /// equal ones mean equal bits for the same problem above not_guaranteed (docs/glossary.md).
  std::string fingerprint() const;
};

/// The tile shape of the plan's first order, which all share as made; of a plan without orders that
/// of contract and problem (default_tile() of verbatim/schedule.h).
TileShape tile_of(const Plan& plan);

/// Proves that every non-empty tile is visited exactly once, that the addends of every row and of
/// every shared tile are 0..n-1, and that worker order + addend order has no cycle. Returns the
/// residency that the proof needs. Throws Error(invalid_plan) naming the tile at fault.
int32_t verify(const Plan& plan);

/// The whole plan (docs/own-orders.md), which plan_from_json() reads.
std::string to_json(const Plan& plan);
/// Proves what it reads. `fingerprint` and `residency` may be left out. Throws Error.
Plan plan_from_json(const std::string& text);

}  // namespace verbatim
