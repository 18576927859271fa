// Where a kernel translated from TL is in its plan: the chain that its CTA keeps, and the visits of
// it. Both lie in shared memory or are read when they are asked for, since registers are for tiles.
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

/// A visit to a tile of the other axis.
struct Visit {
  const Run* run;   // null: there is none
  int32_t row, at;  // as in Place
  int32_t rows, used;
  int32_t q_head;  // in the tensors
  int32_t tile;
  int32_t addend;  // backward: place in the sum of the tile's rows

  __device__ bool exists() const { return run != nullptr; }
  /// Whether slices cut the tile; else all of it is visible.
  __device__ bool is_cut() const { return run->slice_count > 0; }
};

/// The visits of a chain: the current one, 0, and the next kStages, in so many buffers.
template <Pass kPass, int kStages>
class Visits {
 public:
  __device__ explicit Visits(const Place& place) : place_(place), run_(place.run_begin) {}

  __device__ bool any() const { return run_ != place_.run_end; }
  __device__ void advance() {
    if (++number_ == place_.order->runs[run_].count) number_ = 0, ++run_;
    buffer_ = (buffer_ + 1) % kStages;
  }
  __device__ int buffer(int ahead) const { return (buffer_ + ahead) % kStages; }

  __device__ Visit at(int ahead) const {
    const OrderView& order = *place_.order;
    int32_t index = run_, number = number_ + ahead;
#pragma unroll 1
    while (index != place_.run_end && number >= order.runs[index].count) {
      number -= order.runs[index++].count;
    }
    if (index == place_.run_end) return {};
    constexpr bool kForward = kPass == Pass::forward;
    const Run& run = order.runs[index];
    const int32_t tile = run.first + number * run.step;
    const int64_t* edges = kForward ? order.kv_edges : order.q_edges;
    const auto row = static_cast<int32_t>(edges[tile]);
    return {.run = &run,
            .row = row,
            .at = static_cast<int32_t>((kForward ? order.kv_rows : order.q_rows)[tile]),
            .rows = static_cast<int32_t>(edges[tile + 1]) - row,
            .used = (kForward ? order.kv_used : order.q_used)[tile],
            .q_head = place_.q_head + run.q_head,
            .tile = tile,
            .addend = run.addend + number / run.addend_every * run.addend_step};
  }

 private:
  const Place& place_;
  int32_t run_, number_ = 0, buffer_ = 0;
};

}  // namespace verbatim::cuda::tiles
