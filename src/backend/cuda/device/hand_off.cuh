// How CTAs share work and order their sums: tickets, and turns that pass from addend to addend.
#pragma once

#include "backend/cuda/device/params.h"

namespace verbatim::cuda {

__device__ inline int32_t load_acquire(const int32_t* address) {
  int32_t value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

__device__ inline void store_release(int32_t* address, int32_t value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

__device__ inline int64_t nanoseconds() {
  int64_t value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
  return value;
}

/// Ends every wait of the launch and tells the host where the first expired.
__device__ inline void give_up(const HandOff& hand_off, WaitReport where) {
  if (atomicExch(hand_off.aborted, 1) != 0) return;
  WaitReport* report = hand_off.report;
  report->head = where.head;
  report->q_head = where.q_head;
  report->tile = where.tile;
  report->addend = where.addend;
  report->seen = where.seen;
  __threadfence_system();
  *static_cast<volatile int32_t*>(&report->expired) = 1;
}

/// Waits until it is `where.addend`'s turn: by one thread, followed by a CTA barrier. What earlier
/// addends wrote before pass_turn() is then visible to the CTA. After a launch has been aborted it
/// returns at once: the kernel ends with undefined results, and the host reports the error.
__device__ inline void wait_turn(const HandOff& hand_off, const int32_t* turn, WaitReport where) {
  where.seen = load_acquire(turn);
  if (where.seen == where.addend) return;
  const int64_t begin = nanoseconds();
  while ((where.seen = load_acquire(turn)) != where.addend) {
    if (load_acquire(hand_off.aborted) != 0) return;
    if (nanoseconds() - begin > hand_off.spin_limit_ns) return give_up(hand_off, where);
  }
}

/// Passes the turn to `addend`: by one thread, after a CTA barrier behind the CTA's last write.
__device__ inline void pass_turn(int32_t* turn, int32_t addend) {
  __threadfence();
  store_release(turn, addend);
}

/// Calls body(head, order, chain) for each chain of every unit this CTA draws. All threads of the
/// CTA call it; `shared_ticket` lies in shared memory. Units are drawn in issue order, so that what
/// a plan of residency 1 waits for has always been drawn before.
template <class Body>
__device__ void for_each_chain(const PlanView& plan, const HandOff& hand_off,
                               int32_t& shared_ticket, Body& body) {
  while (true) {
    __syncthreads();  // the previous ticket has been read
    if (threadIdx.x == 0) shared_ticket = atomicAdd(hand_off.ticket, 1);
    __syncthreads();
    const int32_t unit = shared_ticket;
    if (unit >= plan.unit_count) return;
    const int32_t begin = plan.unit_begin ? plan.unit_begin[unit] : unit;
    const int32_t end = plan.unit_begin ? plan.unit_begin[unit + 1] : unit + 1;
    for (int32_t i = begin; i < end; ++i) {
      const PlacedTask placed = plan.placed[i];
      const OrderView& order = plan.orders[plan.order_of_head[placed.head]];
      const Task task = order.tasks[placed.task];
      for (int32_t c = task.chain_begin; c < task.chain_end; ++c) {
        body(placed.head, order, order.chains[c]);
      }
    }
  }
}

}  // namespace verbatim::cuda
