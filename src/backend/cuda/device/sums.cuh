// What `Reduce ordered` becomes: an addend of a sum enters it in the turn that the plan gives it
// (hand_off.cuh). The first stores, the last multiplies, converts and writes the result.
#pragma once

#include "backend/cuda/device/chains.cuh"
#include "backend/cuda/device/hand_off.cuh"
#include "backend/cuda/device/tiles.cuh"
#include "backend/cuda/device/workspace.h"
#include "plan/chain_sums.h"

namespace verbatim::cuda::tiles {

/// Rowsum of dO O: [batch, q_heads, q_len].
__device__ inline const float* delta_of(const BackwardParams& p) {
  return static_cast<const float*>(p.workspace);
}

/// Where a sum of `rows` rows grows, kCols floats a row, and where its result belongs.
template <class Element>
struct Sum {
  float* at;
  Element* result;
  int64_t stride;  // of the result's rows
  int32_t rows;
};

/// sum += part, a kRows x kCols product. Sums pass between multiprocessors, so they bypass L1.
template <int kRows, int kCols, class Mma, class Part, class Element>
__device__ void add(const Mma& mma, const Part& part, const Sum<Element>& sum, bool first,
                    bool last, float scale) {
  using Pair = cutlass::NumericArrayConverter<Element, float, 2>;
  const auto values = by_rows(part);
  const auto at = places<kRows, kCols>(mma);
  CUTE_UNROLL
  for (int i = 0; i < size<0>(values); ++i) {
    const int32_t row = get<0>(at(i, 0));
    if (row >= sum.rows) continue;
    CUTE_UNROLL
    for (int j = 0; j < size<1>(values); j += 2) {
      const int32_t column = get<1>(at(i, j));
      float2 value = make_float2(values(i, j), values(i, j + 1));
      auto* so_far = reinterpret_cast<float2*>(sum.at + int64_t{row} * kCols + column);
      if (!first) {
        const float2 before = __ldcg(so_far);
        value = make_float2(before.x + value.x, before.y + value.y);
      }
      if (last) {
        *reinterpret_cast<typename Pair::result_type*>(sum.result + row * sum.stride + column) =
            Pair::convert({value.x * scale, value.y * scale});
      } else {
        __stcg(so_far, value);
      }
    }
  }
}

/// part = what the chain before left in a sum.
template <int kRows, int kCols, class Mma, class Part, class Element>
__device__ void take_over(const Mma& mma, Part& part, const Sum<Element>& sum) {
  auto values = by_rows(part);
  const auto at = places<kRows, kCols>(mma);
  CUTE_UNROLL
  for (int i = 0; i < size<0>(values); ++i) {
    const int32_t row = get<0>(at(i, 0));
    CUTE_UNROLL
    for (int j = 0; j < size<1>(values) && row < sum.rows; j += 2) {
      const float2 before =
          __ldcg(reinterpret_cast<const float2*>(sum.at + int64_t{row} * kCols + get<1>(at(i, j))));
      values(i, j) = before.x;
      values(i, j + 1) = before.y;
    }
  }
}

__device__ inline WaitReport expected(const Place& at, int32_t q_head, int32_t tile,
                                      int32_t addend) {
  return {.pass = static_cast<int32_t>(Pass::backward),
          .batch = at.b,
          .kv_head = at.kv_head,
          .q_head = q_head,
          .tile = tile,
          .addend = addend};
}

/// The whole CTA waits for a turn; addend 0 need not.
__device__ inline void wait_for(const BackwardParams& p, const int32_t* turn,
                                const WaitReport& where) {
  if (threadIdx.x == 0) wait_turn(p.hand_off, turn, where);
  __syncthreads();
}

/// dQ of a visit.
template <int kRows, int kCols, class Element, class Mma, class Part>
__device__ void add_rows(const Mma& mma, const Part& part, const BackwardParams& p, const Place& at,
                         const Visit& now, float scale) {
  int32_t* turn = p.hand_off.row(int64_t{at.b} * p.sizes.q_heads + now.q_head, now.tile);
  const bool first = now.addend == 0;
  const bool last = now.addend == at.order->row_addends[now.tile] - 1;
  if (!first) wait_for(p, turn, expected(at, now.q_head - at.q_head, now.tile, now.addend));
  const bool piece = p.carried.blocks != nullptr;
  float* sums =
      piece ? p.carried.dq
            : static_cast<float*>(p.workspace) + BackwardWorkspace::of(p.sizes, 0, false).dq;
  add<kRows, kCols>(mma, part,
                    Sum<Element>{sums + p.sizes.row_index(at.b, now.q_head, now.at) * kCols,
                                 p.dq.at<Element>(at.b, now.at, now.q_head), p.dq.row, now.rows},
                    first, last, scale);
  if (last) return;
  __syncthreads();
  if (threadIdx.x == 0) pass_turn(turn, now.addend + 1);
}

/// Before a chain adds to dK and dV of its tile: waits for its turn where others added before.
__device__ inline void begin_keys(const BackwardParams& p, const Place& at) {
  const Chain& chain = *at.chain_of_plan;
  if (chain.addend == 0 || chain.continues) return;
  wait_for(p, p.hand_off.key(at.head, at.tile),
           expected(at, WaitReport::keys, at.tile, chain.addend));
}
/// Behind it: passes the turn on.
__device__ inline void end_keys(const BackwardParams& p, const Place& at) {
  const Chain& chain = *at.chain_of_plan;
  if (chain.addend == chain.addends - 1) return;
  __syncthreads();
  if (threadIdx.x == 0) pass_turn(p.hand_off.key(at.head, at.tile), chain.addend + 1);
}

/// The sum of dK or dV of the chain's tile. `goes_in`: the one that it goes on from, else the one
/// that it leaves.
template <class Element>
__device__ Sum<Element> key_sum(const BackwardParams& p, const Place& at, bool of_v, bool goes_in) {
  const TensorRef& result = of_v ? p.dv : p.dk;
  const int64_t columns = of_v ? p.sizes.head_dim_v : p.sizes.head_dim;
  float* sums;
  if (at.order->carries) {
    const Carry carry = at.order->carries[at.chain_of_plan - at.order->chains];
    sums = p.carried.block(goes_in ? carry.in : carry.out) +
           (of_v ? int64_t{at.rows} * p.sizes.head_dim : 0);
  } else {
    const auto space = BackwardWorkspace::of(p.sizes, 0, p.carried.blocks != nullptr);
    sums = static_cast<float*>(p.workspace) + (of_v ? space.dv : space.dk) +
           (lies_apart(*at.chain_of_plan, goes_in) ? space.apart : 0) +
           p.sizes.key_index(at.b, at.kv_head, at.at) * columns;
  }
  return {sums, result.at<Element>(at.b, at.at, at.kv_head), result.row, at.rows};
}

/// dK or dV of a chain.
template <int kRows, int kCols, class Element, class Mma, class Part>
__device__ void add_keys(const Mma& mma, const Part& part, const BackwardParams& p, const Place& at,
                         bool of_v, float scale) {
  const Chain& chain = *at.chain_of_plan;
  add<kRows, kCols>(mma, part, key_sum<Element>(p, at, of_v, false), !joins_sum(chain),
                    chain.addend == chain.addends - 1, scale);
}

/// Where a chain continues another, it starts with what that left.
template <int kRows, int kCols, class Element, class Mma, class Part>
__device__ void continue_keys(const Mma& mma, Part& part, const BackwardParams& p, const Place& at,
                              bool of_v) {
  if (!at.chain_of_plan->continues) return;
  wait_for(p, p.hand_off.key(at.head, at.tile),
           expected(at, WaitReport::keys, at.tile, at.chain_of_plan->addend));
  take_over<kRows, kCols>(mma, part, key_sum<Element>(p, at, of_v, true));
}

}  // namespace verbatim::cuda::tiles
