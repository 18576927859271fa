// Where a kernel translated from TL is in its plan: the chain that its CTA keeps, and the visits of
// it. Both lie in shared memory, since registers are for tiles.
#pragma once

#include "backend/cuda/device/params.h"

namespace verbatim::cuda::tiles {

/// The chain of a CTA, and what it will do after it.
struct Place {
  const OrderView* order;            // null: there is no chain left
  int32_t task, task_end;            // of the unit that was drawn: those not yet begun
  int32_t chain, chain_end;          // of the task: the next
  int32_t head, b, kv_head, q_head;  // in the plan; batch entry and heads in the tensors
  int32_t tile;                      // kept: of queries in the forward, of keys in the backward
  int32_t row, at;                   // its first row: the position, and in the tensors
  int32_t rows, used;                // rows that exist, and those up to the last that is visible
  int32_t run_begin, run_end;        // its visits
  const Chain* chain_of_plan;        // itself
};

/// The start of a kernel: by all threads.
__device__ inline void start(Place& place) {
  if (threadIdx.x == 0) place = {};
}

/// next_chain() of one thread.
template <Pass kPass, class Params>
__device__ void find_next_chain(Place& place, const Params& p) {
  const PlanView& plan = p.plan;
  while (place.chain == place.chain_end) {
    while (place.task == place.task_end) {
      const int32_t unit = atomicAdd(p.hand_off.ticket, 1);
      if (unit >= plan.unit_count) {
        place.order = nullptr;
        return;
      }
      place.task = plan.unit_begin ? plan.unit_begin[unit] : unit;
      place.task_end = plan.unit_begin ? plan.unit_begin[unit + 1] : unit + 1;
    }
    const PlacedTask placed = plan.placed[place.task++];
    place.head = placed.head;
    place.order = &plan.orders[plan.order_of_head[placed.head]];
    const Task task = place.order->tasks[placed.task];
    place.chain = task.chain_begin;
    place.chain_end = task.chain_end;
  }
  constexpr bool kForward = kPass == Pass::forward;
  const OrderView& order = *place.order;
  const Chain& chain = order.chains[place.chain++];
  const int64_t* edges = kForward ? order.q_edges : order.kv_edges;
  place.b = place.head / p.sizes.kv_heads;
  place.kv_head = place.head % p.sizes.kv_heads;
  place.q_head = place.kv_head * plan.group + chain.q_head;
  place.tile = chain.tile;
  place.row = static_cast<int32_t>(edges[chain.tile]);
  place.at = static_cast<int32_t>((kForward ? order.q_rows : order.kv_rows)[chain.tile]);
  place.rows = static_cast<int32_t>(edges[chain.tile + 1]) - place.row;
  place.used = (kForward ? order.q_used : order.kv_used)[chain.tile];
  place.chain_of_plan = &chain;
  place.run_begin = chain.run_begin;
  place.run_end = chain.run_end;
}

/// Goes on to the next chain of the units that this CTA draws: in issue order, so that what a plan
/// of residency 1 waits for has always been drawn before. By all threads; false: there is none.
template <Pass kPass, class Params>
__device__ bool next_chain(Place& place, const Params& p) {
  __syncthreads();  // nobody reads the chain before, or its tiles
  if (threadIdx.x == 0) find_next_chain<kPass>(place, p);
  __syncthreads();
  return place.order != nullptr;
}

/// Where a tile of the other axis lies.
struct VisitedTile {
  int32_t row, at;  // as in Place
  int32_t rows, used;
};
/// A visit to it.
struct Visit : VisitedTile {
  const Run* run;  // null: there is none
  int32_t q_head;  // in the tensors
  int32_t tile;
  int32_t addend;       // backward: place in the sum of the tile's rows
  int32_t slice_count;  // slices that cut the tile; 0: all of it is visible

  __device__ bool exists() const { return run != nullptr; }
  __device__ bool is_cut() const { return slice_count > 0; }
};

/// Visit `number` of a run of a chain, but for where its tile lies.
template <Pass kPass>
__device__ Visit visit_of(const Place& place, const Run& run, int32_t number) {
  Visit visit;
  visit.run = &run;
  visit.q_head = place.q_head + run.q_head;
  visit.tile = run.first + number * run.step;
  if constexpr (kPass == Pass::backward)
    visit.addend = run.addend + number / run.addend_every * run.addend_step;
  visit.slice_count = run.slice_count;
  return visit;
}
template <Pass kPass>
__device__ VisitedTile visited_tile(const OrderView& order, int32_t tile) {
  constexpr bool kForward = kPass == Pass::forward;
  const int64_t* edges = kForward ? order.kv_edges : order.q_edges;
  const auto row = static_cast<int32_t>(edges[tile]);
  return {.row = row,
          .at = static_cast<int32_t>((kForward ? order.kv_rows : order.q_rows)[tile]),
          .rows = static_cast<int32_t>(edges[tile + 1]) - row,
          .used = (kForward ? order.kv_used : order.q_used)[tile]};
}

/// The visits of a chain: the current one, 0, and those behind it, with as many buffers as stages.
/// Threads next to each other read a window of the plan at once, and leave it in shared memory a
/// window before anyone asks for it.
template <Pass kPass, int kStages>
class Visits {
  static constexpr int kWindow = 8, kSlots = 2 * kWindow;
  static_assert(kStages + 1 < kWindow);

 public:
  struct Slots {
    Visit visits[kSlots];
    int32_t run, number;  // of the first visit that nobody has read
  };

  __device__ Visits(const Place& place, Slots& slots) : place_(place), slots_(slots) {
    if (threadIdx.x < kWindow) read_window(0, place.run_begin, 0);
    __syncthreads();
  }

  __device__ bool any() const { return at(0).exists(); }
  __device__ const Visit& at(int ahead) const { return slots_.visits[(slot_ + ahead) % kSlots]; }
  __device__ int buffer(int ahead) const { return (buffer_ + ahead) % kStages; }

  /// Behind a barrier of the visit, so that nobody reads the window before.
  __device__ void look_ahead() {
    if (threadIdx.x < kWindow && slot_ % kWindow == 0)
      read_window((slot_ + kWindow) % kSlots, slots_.run, slots_.number);
  }
  __device__ void advance() {
    slot_ = (slot_ + 1) % kSlots;
    buffer_ = (buffer_ + 1) % kStages;
  }

 private:
  __device__ void read_window(int slot, int32_t run, int32_t number) {
    __syncwarp((1 << kWindow) - 1);  // all know where it begins
    const auto lane = static_cast<int32_t>(threadIdx.x);
    Visit& visit = slots_.visits[slot + lane];
    visit.run = nullptr;
    for (number += lane; run < place_.run_end; ++run) {
      const Run& here = place_.order->runs[run];
      if (number < here.count) {
        visit = visit_of<kPass>(place_, here, number);
        static_cast<VisitedTile&>(visit) = visited_tile<kPass>(*place_.order, visit.tile);
        break;
      }
      number -= here.count;
    }
    if (lane == kWindow - 1) slots_.run = run, slots_.number = number + 1;
  }

  const Place& place_;
  Slots& slots_;
  int32_t slot_ = 0, buffer_ = 0;
};

}  // namespace verbatim::cuda::tiles
