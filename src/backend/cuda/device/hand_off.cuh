// How CTAs share work and order their sums: tickets, turns that pass from addend to addend, and
// what becomes of a launch whose turn does not come.
#pragma once

#include "backend/cuda/device/clock.cuh"
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

/// Ends every wait of the launch and tells the host where the first expired, unless a report lies
/// there that it has not read yet.
__device__ inline void give_up(const HandOff& hand_off, const WaitReport& where) {
  if (atomicCAS(hand_off.aborted, 0, 1) != 0) return;
  WaitReport* report = hand_off.report;
  if (atomicCAS_system(&report->state, WaitReport::free, WaitReport::claimed) != WaitReport::free) {
    return;
  }
  report->pass = where.pass;
  report->batch = where.batch;
  report->kv_head = where.kv_head;
  report->q_head = where.q_head;
  report->tile = where.tile;
  report->addend = where.addend;
  report->seen = where.seen;
  report->residency = hand_off.residency;
  __threadfence_system();  // whole before it is published
  *static_cast<volatile int32_t*>(&report->state) = WaitReport::published;
}

/// Waits until load() is at least `count`: by one thread. Returns as well when the launch has been
/// given up, here because the wait expired or elsewhere: the kernel then goes on with whatever it
/// finds and ends, and its results become NaN. `where(seen)` is the report.
template <class Load, class Where>
__device__ __forceinline__ void wait_until(const HandOff& hand_off, int32_t count, Load load,
                                           Where where) {
  int64_t begin = 0;  // of the clock, which most waits do not need
  for (uint32_t polls = 1;; ++polls) {
    const int32_t seen = load();
    if (seen >= count) return;
    if (polls % 64 != 0) continue;
    if (*static_cast<volatile int32_t*>(hand_off.aborted) != 0) return;
    const int64_t now = nanoseconds();
    if (begin == 0) begin = now;
    if (now - begin > hand_off.spin_limit_ns) return give_up(hand_off, where(seen));
  }
}

/// Waits until it is `where.addend`'s turn: by one thread, followed by a CTA barrier. What earlier
/// addends wrote before pass_turn() is then visible to the CTA.
__device__ inline void wait_turn(const HandOff& hand_off, const int32_t* turn, WaitReport where) {
  wait_until(
      hand_off, where.addend, [&] { return load_acquire(turn); },
      [&](int32_t seen) {
        where.seen = seen;
        return where;
      });
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

/// By one thread of every CTA, behind a CTA barrier that is behind its last result: whether it is
/// the last CTA of a launch that was given up, whose results it then has to destroy.
__device__ inline bool ends_given_up(const HandOff& hand_off) {
  __threadfence();
  if (atomicAdd(hand_off.finished, 1) + 1 != static_cast<int32_t>(gridDim.x)) return false;
  __threadfence();  // what the others wrote comes before what this one writes now
  return *static_cast<volatile int32_t*>(hand_off.aborted) != 0;
}

/// The same by a whole CTA; `shared` lies in shared memory.
__device__ inline bool ends_given_up(const HandOff& hand_off, int32_t& shared) {
  __syncthreads();
  if (threadIdx.x == 0) shared = ends_given_up(hand_off);
  __syncthreads();
  return shared != 0;
}

/// Makes a result of 16-bit elements NaN: [batch, length, heads, dim] of a TensorRef. By `threads`
/// threads, of which this is `thread`.
__device__ inline void destroy(const TensorRef& result, const Sizes& sizes, int64_t length,
                               int32_t heads, int32_t dim, int32_t thread, int32_t threads) {
  constexpr uint32_t kNan = 0x7fff7fff;                     // of bf16 and of f16
  const int32_t pieces = dim / 8, rows = threads / pieces;  // 16 bytes each
  const int32_t row = thread / pieces, column = thread % pieces * 8;
  if (row >= rows) return;
#pragma unroll 1
  for (int32_t b = 0; b < sizes.batch; ++b) {
#pragma unroll 1
    for (int32_t h = 0; h < heads; ++h) {
#pragma unroll 1
      for (int64_t l = row; l < length; l += rows) {
        *reinterpret_cast<uint4*>(result.at<uint16_t>(b, l, h) + column) =
            make_uint4(kNan, kNan, kNan, kNan);
      }
    }
  }
}

/// The results of a pass.
__device__ inline void destroy_results(const ForwardParams& p, int32_t thread, int32_t threads) {
  const Sizes& s = p.sizes;
  destroy(p.o, s, s.q_len, s.q_heads, s.head_dim_v, thread, threads);
  const int64_t rows = int64_t{s.batch} * s.q_heads * s.q_len;
  for (int64_t i = thread; i < rows; i += threads) p.lse[i] = __int_as_float(0x7fffffff);
}
__device__ inline void destroy_results(const BackwardParams& p, int32_t thread, int32_t threads) {
  const Sizes& s = p.sizes;
  destroy(p.dq, s, s.q_len, s.q_heads, s.head_dim, thread, threads);
  destroy(p.dk, s, s.kv_len, s.kv_heads, s.head_dim, thread, threads);
  destroy(p.dv, s, s.kv_len, s.kv_heads, s.head_dim_v, thread, threads);
}

}  // namespace verbatim::cuda
