// Runs a plan in simulated time: the paper's model and the calibrated one (docs/machines.md).
#include "schedule/simulate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <unordered_map>

#include "contract/head_dims.h"
#include "core/random.h"
#include "plan/walk.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

/// A fixed number in [-1, 1] for every (worker, step).
double noise(int32_t worker, int64_t step) {
  const uint64_t place = (static_cast<uint64_t>(worker) << 40) + static_cast<uint64_t>(step);
  return static_cast<double>(splitmix64(place) >> 11) * 0x1p-52 - 1;
}

/// A sum that grows in order.
struct Sum {
  int32_t next = 0;
  double ready = 0;  // when the last addend is visible to others
};

/// L2 with random replacement, and the path to memory that all workers share.
class Memory {
 public:
  /// A fill moves one row tile: dQ in and out, Q and dO in.
  Memory(const Machine& machine, double row_bytes, double fill_bytes)
      : capacity_(machine.l2_bytes),
        row_bytes_(row_bytes),
        fill_cycles_(machine.bandwidth > 0 ? fill_bytes / machine.bandwidth : 0) {}

  /// When a row last used at `mark` (negative: never) and wanted at `time` is in L2.
  double use(double& mark, double time) {
    if (capacity_ <= 0) return time;
    // The part of the row that the bytes filled since then have pushed out.
    const double missing = mark < 0 ? 1 : 1 - std::exp((mark - filled_) / capacity_);
    filled_ += missing * row_bytes_;
    mark = filled_;
    free_ = std::max(free_, time) + missing * fill_cycles_;
    return free_;
  }

 private:
  double capacity_, row_bytes_, fill_cycles_;
  double filled_ = 0;  // bytes so far
  double free_ = 0;    // when the path to memory is free
};

struct Worker {
  Walker walker;
  bool chain_open = false;
  double time = 0;               // compute units are free from here
  double writer = 0;             // ... and the writer from here
  std::vector<double> released;  // when each used buffer's reduction ends, in turn
  size_t buffer = 0;
  int64_t steps = 0;
  double task_work = 0;  // of the task at hand
};

class Simulator {
 public:
  Simulator(const Plan& plan, const Machine& machine, Timeline* timeline)
      : plan_(plan),
        machine_(machine),
        timeline_(timeline),
        ordered_(machine.ordered && plan.level > Level::not_guaranteed),
        costs_(plan, machine),
        memory_(machine, row_bytes(plan, 1), row_bytes(plan, 2)),
        heads_(plan.order_of_head.size()) {}

  SimulatedRun run() {
    const Placement& placement = plan_.placement;
    workers_.resize(placement.workers);
    result_.tasks.resize(workers_.size());
    for (int32_t w = 0; w < placement.workers; ++w) {
      Worker& worker = workers_[w];
      worker.time = worker.writer = machine_.launch;
      if (!placement.queue) {
        const auto begin = placement.worker_begin[w];
        const auto end = placement.worker_begin[w + 1];
        give(w, std::span(placement.tasks).subspan(begin, end - begin));
      }
      ready_.emplace(worker.time, w);
    }
    while (!ready_.empty()) {
      const int32_t w = ready_.top().second;
      ready_.pop();
      // Goes on while no other worker is behind.
      while (step(w)) {
        const double time = workers_[w].time;
        if (!ready_.empty() && ready_.top() < std::pair(time, w)) {
          ready_.emplace(time, w);
          break;
        }
      }
    }
    if (!parked_.empty())
      throw Error(ErrorCode::invalid_plan, "schedule.simulate",
                  "the plan hangs: too few workers for its waits");
    return finish();
  }

 private:
  struct Head {
    std::vector<Sum> rows, tiles;
    std::vector<double> marks;  // last use, as rows
  };
  using Ready = std::pair<double, int32_t>;

  /// Of `plan` the tiles of dQ, Q and dO of one row; dQ counts `dq_moves` times.
  static double row_bytes(const Plan& plan, double dq_moves) {
    if (plan.orders.empty() || plan.pass == Pass::forward) return 0;
    const contract::HeadDims dims = contract::head_dims_of(plan.arithmetic, plan.problem);
    const auto size = static_cast<double>(size_of(plan.problem.dtype));
    const auto dim = static_cast<double>(dims.qk), dim_v = static_cast<double>(dims.v);
    return static_cast<double>(tile_of(plan).q) * (dim * (4 * dq_moves + size) + dim_v * size);
  }

  void give(int32_t w, std::span<const PlacedTask> tasks) {
    Worker& worker = workers_[w];
    worker.walker = Walker(plan_, tasks);
    auto& given = result_.tasks[w];
    given.insert(given.end(), tasks.begin(), tasks.end());
  }

  /// Does the next visit or chain end of a worker; false when it has to wait or is done.
  bool step(int32_t w) {
    Worker& worker = workers_[w];
    if (worker.walker.done()) {
      const auto& tasks = plan_.placement.tasks;
      if (!plan_.placement.queue || ticket_ == tasks.size()) return false;
      give(w, std::span(tasks).subspan(ticket_++, 1));
    }
    const size_t task = worker.walker.task_index();
    const bool moved = worker.walker.at_chain_start() ? take_over(w, worker)
                       : worker.walker.at_chain_end() ? end_chain(w, worker)
                                                      : visit(w, worker);
    if (moved) worker.walker.advance();
    if (worker.walker.task_index() != task) worker.task_work = 0;
    return moved;
  }

  void add_work(Worker& worker, double cycles) {
    result_.totals.work += cycles;
    worker.task_work += cycles;
    longest_task_ = std::max(longest_task_, worker.task_work);
  }

  Head& head_of(const Walker& walker) {
    Head& head = heads_[walker.placed().head];
    if (head.tiles.empty()) {
      const HeadOrder& order = walker.order();
      const size_t group = order.group;
      const auto rows = static_cast<size_t>(order.tiles->q_tiles()) * group;
      head.rows.resize(rows);
      head.marks.assign(rows, -1);
      head.tiles.resize(std::max(rows, static_cast<size_t>(order.tiles->kv_tiles()) * group));
    }
    return head;
  }

  /// Whether `addend` may enter; else parks the worker until it may.
  bool may_enter(const Sum& sum, int32_t addend, int32_t w) {
    if (!ordered_ || sum.next == addend) return true;
    parked_[&sum].emplace_back(addend, w);
    return false;
  }

  void enter(Sum& sum, double ready) {
    ++sum.next;
    sum.ready = ready;
    const auto waiting = parked_.find(&sum);
    if (waiting == parked_.end()) return;
    auto& list = waiting->second;
    const auto next = std::find_if(list.begin(), list.end(),
                                   [&](const auto& entry) { return entry.first == sum.next; });
    if (next == list.end()) return;
    ready_.emplace(workers_[next->second].time, next->second);
    list.erase(next);
    if (list.empty()) parked_.erase(waiting);
  }

  double waits_until(const Sum& sum) const { return ordered_ ? sum.ready : 0; }

  void open_chain(int32_t w, Worker& worker) {
    if (worker.chain_open) return;
    worker.chain_open = true;
    record(TimelineEvent::Kind::start, w, worker, worker.time, worker.time + machine_.chain_start);
    worker.time += machine_.chain_start;
    add_work(worker, machine_.chain_start);
  }

  bool visit(int32_t w, Worker& worker) {
    open_chain(w, worker);
    const Walker& walker = worker.walker;
    const auto place =
        static_cast<size_t>(walker.tile()) * static_cast<size_t>(walker.order().group) +
        static_cast<size_t>(walker.run().q_head);
    if (plan_.pass == Pass::forward) {
      advance_compute(w, worker, costs_.compute(walker.run()), 0);
      return true;
    }
    Head& head = head_of(walker);
    Sum& row = head.rows[place];
    if (!may_enter(row, walker.addend(), w)) return false;
    const double in_cache = memory_.use(head.marks[place], worker.time);
    const double compute =
        costs_.compute(walker.run()) * (1 + machine_.jitter * noise(w, worker.steps++));
    if (worker.buffer == worker.released.size()) worker.released.push_back(0);
    double& released = worker.released[worker.buffer];
    worker.buffer = (worker.buffer + 1) % static_cast<size_t>(std::max(machine_.buffers, 1));
    advance_compute(w, worker, compute, machine_.overlap ? released + costs_.store() : 0);
    const double begin = std::max({worker.time, worker.writer, waits_until(row)});
    const double reduced = std::max(begin + costs_.reduce(), in_cache);
    record(TimelineEvent::Kind::wait, w, worker, worker.time, begin);
    record(TimelineEvent::Kind::reduce, w, worker, begin, reduced);
    worker.writer = released = reduced;
    if (!machine_.overlap) {
      result_.totals.stall += begin - worker.time;
      add_work(worker, reduced - begin);
      worker.time = reduced;
    }
    enter(row, reduced + machine_.signal_latency);
    return true;
  }

  /// Computes for `compute` cycles, but not to an end before `earliest`.
  void advance_compute(int32_t w, Worker& worker, double compute, double earliest) {
    const double begin = worker.time;
    worker.time = std::max(begin + compute, earliest);
    record(TimelineEvent::Kind::compute, w, worker, begin, begin + compute);
    record(TimelineEvent::Kind::wait, w, worker, begin + compute, worker.time);
    add_work(worker, compute);
    result_.totals.stall += worker.time - begin - compute;
  }

  /// The sum of the tile that the chain keeps.
  Sum& kept_sum(const Walker& walker) {
    const Chain& chain = walker.chain();
    return head_of(walker)
        .tiles[static_cast<size_t>(chain.tile) * static_cast<size_t>(walker.order().group) +
               static_cast<size_t>(chain.q_head)];
  }

  /// Reads what the chain before left, which takes as long as it took to add it.
  bool take_over(int32_t w, Worker& worker) {
    open_chain(w, worker);
    const Sum& tile = kept_sum(worker.walker);
    if (!may_enter(tile, worker.walker.chain().addend, w)) return false;
    const double begin = std::max(worker.time, waits_until(tile));
    record(TimelineEvent::Kind::wait, w, worker, worker.time, begin);
    record(TimelineEvent::Kind::start, w, worker, begin, begin + machine_.chain_share);
    result_.totals.stall += begin - worker.time;
    add_work(worker, machine_.chain_share);
    worker.time = begin + machine_.chain_share;
    return true;
  }

  bool end_chain(int32_t w, Worker& worker) {
    open_chain(w, worker);
    const Walker& walker = worker.walker;
    const Chain& chain = walker.chain();
    Sum& tile = kept_sum(walker);
    if (!may_enter(tile, chain.addend, w)) return false;
    const double begin = std::max(worker.time, waits_until(tile));
    const double cost = chain.addends > 1 ? machine_.chain_share : machine_.chain_end;
    record(TimelineEvent::Kind::wait, w, worker, worker.time, begin);
    record(TimelineEvent::Kind::finish, w, worker, begin, begin + cost);
    result_.totals.stall += begin - worker.time;
    add_work(worker, cost);
    worker.time = begin + cost;
    worker.chain_open = false;
    enter(tile, worker.time + (chain.addends > 1 ? machine_.signal_latency : 0));
    return true;
  }

  void record(TimelineEvent::Kind kind, int32_t w, const Worker& worker, double begin, double end) {
    if (timeline_ == nullptr || end <= begin) return;
    const Walker& walker = worker.walker;
    const bool whole =
        kind == TimelineEvent::Kind::start || walker.at_chain_start() || walker.at_chain_end();
    const int32_t streamed = whole ? -1 : walker.tile();
    const int32_t kept = walker.chain().tile;
    const bool backward = plan_.pass == Pass::backward;
    timeline_->events.push_back(
        {kind, w, walker.placed().head, whole ? walker.chain().q_head : walker.run().q_head,
         backward ? streamed : kept, backward ? kept : streamed, begin, end});
  }

  SimulatedRun finish() {
    Simulation& totals = result_.totals;
    for (const Worker& worker : workers_)
      totals.makespan = std::max({totals.makespan, worker.time, worker.writer});
    const auto workers = static_cast<double>(workers_.size());
    totals.idle =
        std::max(0.0, (totals.makespan - machine_.launch) * workers - totals.work - totals.stall);
    totals.lower_bound = machine_.launch + std::max(totals.work / workers, longest_task_);
    if (timeline_ != nullptr) {
      timeline_->source = "simulated " + machine_.name;
      timeline_->unit = "cycles";
      timeline_->workers = plan_.placement.workers;
    }
    return std::move(result_);
  }

  const Plan& plan_;
  const Machine& machine_;
  Timeline* timeline_;
  bool ordered_;
  Costs costs_;
  Memory memory_;
  std::vector<Head> heads_;
  std::vector<Worker> workers_;
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready_;
  std::unordered_map<const Sum*, std::vector<std::pair<int32_t, int32_t>>> parked_;
  size_t ticket_ = 0;
  double longest_task_ = 0;  // its work, with the jitter that it had
  SimulatedRun result_;
};

}  // namespace

Costs::Costs(const Plan& plan, const Machine& machine) : machine_(machine) {
  double area = 1, rows = 1;
  if (machine.reference_tile.q > 0 && !plan.orders.empty()) {
    const TileShape shape = tile_of(plan);
    rows = static_cast<double>(shape.q) / static_cast<double>(machine.reference_tile.q);
    area = rows * static_cast<double>(shape.kv) / static_cast<double>(machine.reference_tile.kv);
  }
  double dim = 1, both_dims = 1;
  if (machine.reference_dim > 0) {
    const auto reference = static_cast<double>(machine.reference_dim);
    const contract::HeadDims dims = contract::head_dims_of(plan.arithmetic, plan.problem);
    dim = static_cast<double>(dims.qk) / reference;
    both_dims = (dim + static_cast<double>(dims.v) / reference) / 2;
  }
  compute_ = machine.compute * area * both_dims;
  if (plan.pass == Pass::forward) compute_ *= machine.forward;
  reduce_ = machine.reduce * rows * dim;
  store_ = machine.store * rows * dim;
}

double Costs::task(const HeadOrder& order, const Task& task) const {
  double cost = 0;
  for (int32_t c = task.chain_begin; c < task.chain_end; ++c) {
    const Chain& chain = order.chains[c];
    cost += machine_.chain_start + (chain.addends > 1 ? machine_.chain_share : machine_.chain_end) +
            (chain.continues ? machine_.chain_share : 0);
    const bool in_series = order.pass == Pass::backward && !machine_.overlap;
    order.for_each_part(chain, [&](int32_t, RunView runs) {
      for (const Run& run : runs) cost += run.count * (compute(run) + (in_series ? reduce_ : 0));
    });
  }
  return cost;
}

SimulatedRun simulate_run(const Plan& plan, const Machine& machine, Timeline* timeline) {
  return Simulator(plan, machine, timeline).run();
}

Simulation simulate(const Plan& plan, const Machine& machine, Timeline* timeline) {
  return simulate_run(plan, machine, timeline).totals;
}

}  // namespace verbatim
