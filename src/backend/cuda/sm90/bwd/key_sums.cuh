// How chains of the sm90 backward that share a KV tile add up their dK and dV.
//
// Between two chains the sum of dK lies in the workspace and that of dV, in floats, in the rows of
// the results: a row of dK and one of dV, two bytes an element, hold one of the sum, and nobody
// needs them before the last chain writes them. In a piece of a plan both are carried in a
// block, row by row, and nobody waits: what a chain goes on from is there before the launch.
//
// Pieces of a chain of this launch pass on its sums in the same places, or, where these hold the
// sum of other chains, in a block of the workspace.
//
// In results and blocks a row is as wide as the problem's; of the columns behind, which are 0, the
// workspace alone has places.
#pragma once

#include "backend/cuda/sm90/bwd/config.h"
#include "backend/cuda/sm90/bwd/dq.cuh"
#include "backend/cuda/sm90/bwd/params.h"
#include "backend/cuda/sm90/ptx.cuh"
#include "contract/head_dims.h"
#include "plan/chain_sums.h"

namespace verbatim::cuda::sm90::bwd {

/// Of a row of an accumulator of kFloats, the pairs that every head dim of its instance has: 72 is
/// the least that runs as 128, and 8 as 64.
template <int kFloats>
constexpr int kSurePairs = kFloats > 32 ? 9 : 1;
static_assert(contract::sm90_head_dims(64, 64).qk == 64 &&
              contract::sm90_head_dims(72, 72).qk == 128);

/// A thread's part of the sums of a warpgroup's half of a KV tile. Of wgmma accumulators: element
/// 4 j + 2 r + c is row + 8 r, column 8 j + 2 (lane % 4) + c; kDk and kDv of them.
template <class Element, int kDk, int kDv>
class KeySums {
  static_assert(2 * sizeof(Element) == sizeof(float) && kDv <= kDk);

 public:
  /// `row`: of the tile, this thread's first.
  __device__ __forceinline__ KeySums(const Params& p, const Chain90& chain, int half, int row)
      : rows_(chain.kv_rows - row) {
    const int64_t place = static_cast<int64_t>(chain.key) * 2 + half;
    turn_ = p.workspace.key_turns + place;
    barrier_ =
        static_cast<uint32_t>(half == 0 ? NamedBarrier::warpgroup_0 : NamedBarrier::warpgroup_1);
    dk_ = p.workspace.dk_sum + place * (kDk / 4 * 128) + threadIdx.x % 128;
    const auto first = [&](const TensorRef& tensor) {
      Element* at = tensor.template at<Element>(chain.batch, chain.kv_at + row, chain.kv_head);
      return reinterpret_cast<float2*>(at) + threadIdx.x % 4;
    };
    const int in_dk = p.common.sizes.head_dim_v / 4;  // float2 of a row; the others lie in dV's
    dv_[0] = first(p.common.dk);
    dv_[1] = first(p.common.dv) - in_dk;
    apart_[0] = 2 * p.common.dk.row;
    apart_[1] = 2 * p.common.dv.row;
    pairs_[0] = (in_dk + 3 - static_cast<int>(threadIdx.x % 4)) / 4;
    pairs_[1] = p.common.sizes.head_dim_v / 8;
  }

  /// By the warpgroup, until all addends before the chain's are there.
  __device__ __forceinline__ void wait(const Params& p, const Chain90& chain) const {
    if (threadIdx.x % 128 == 0) wait_for_turn(p.common, turn_, chain.addend, chain.key, true);
    ptx::named_barrier(barrier_, 128);
  }

  /// x = combine(x, sum) for every element.
  template <class Dk, class Dv, class Combine>
  __device__ __forceinline__ void read(Dk& dk, Dv& dv, Combine combine) const {
    each_pair([&](int i, const float2* at) {
      const float2 sum = __ldcg(at);
      dv(i) = combine(dv(i), sum.x);
      dv(i + 1) = combine(dv(i + 1), sum.y);
    });
#pragma unroll
    for (int i = 0; i < kDk; i += 4) {
      const float4 sum = __ldcg(dk_ + 32 * i);
      dk(i) = combine(dk(i), sum.x);
      dk(i + 1) = combine(dk(i + 1), sum.y);
      dk(i + 2) = combine(dk(i + 2), sum.z);
      dk(i + 3) = combine(dk(i + 3), sum.w);
    }
  }

  /// Leaves the sums, now of `addends` chains, for the next.
  template <class Dk, class Dv>
  __device__ __forceinline__ void write(const Dk& dk, const Dv& dv, int32_t addends) const {
    each_pair([&](int i, float2* at) { __stcg(at, make_float2(dv(i), dv(i + 1))); });
#pragma unroll
    for (int i = 0; i < kDk; i += 4) {
      __stcg(dk_ + 32 * i, make_float4(dk(i), dk(i + 1), dk(i + 2), dk(i + 3)));
    }
    pass(addends);
  }

  /// Says that `addends` chains have left what they wrote.
  __device__ __forceinline__ void pass(int32_t addends) const {
    ptx::named_barrier(barrier_, 128);  // what it orders, the release passes on
    if (threadIdx.x % 128 == 0) store_release(turn_, addends);
  }

 private:
  /// Calls f(i, address) for elements i and i + 1 of dV, in the rows that the tile has.
  template <class F>
  __device__ __forceinline__ void each_pair(F f) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (8 * r >= rows_) return;
      float2* const dk = dv_[0] + r * apart_[0];
      float2* const dv = dv_[1] + r * apart_[1];
#pragma unroll
      for (int j = 0; j < kDv / 4; ++j) {
        const bool in_dk = j < kSurePairs<kDv> / 2 || (j < kDv / 8 && j < pairs_[0]);
        if (j < kSurePairs<kDv> || j < pairs_[1]) f(4 * j + 2 * r, (in_dk ? dk : dv) + 4 * j);
      }
    }
  }

  float2* dv_[2];     // in the results dK and dV, as if all pairs of a row were in each
  int64_t apart_[2];  // of rows `row` and `row + 8` there
  int pairs_[2];      // of a row in dK, and in both
  float4* dk_;
  int32_t* turn_;
  int rows_;  // from `row` on
  uint32_t barrier_;
};

/// A thread's part of the sums of a KV tile that lie in a block, dK before dV, row by row, of
/// accumulators of kDk and kDv floats as above.
template <int kDk, int kDv>
class KeyBlock {
 public:
  __device__ __forceinline__ KeyBlock(const Params& p, const Chain90& chain, float* block, int row)
      : columns_{p.common.sizes.head_dim, p.common.sizes.head_dim_v},
        dk_(reinterpret_cast<float2*>(block) + threadIdx.x % 4 + row * columns_[0] / 2),
        dv_(dk_ + (chain.kv_rows - row) * columns_[0] / 2 + row * columns_[1] / 2),
        rows_(chain.kv_rows - row) {}

  template <class Dk, class Dv>
  __device__ __forceinline__ void read(Dk& dk, Dv& dv) const {
    const auto into = [](auto& acc) {
      return [&acc](int i, const float2* at) {
        const float2 sum = __ldcg(at);
        acc(i) = sum.x;
        acc(i + 1) = sum.y;
      };
    };
    each_pair<kDk>(dk_, columns_[0], into(dk));
    each_pair<kDv>(dv_, columns_[1], into(dv));
  }

  template <class Dk, class Dv>
  __device__ __forceinline__ void write(const Dk& dk, const Dv& dv) const {
    const auto from = [](const auto& acc) {
      return [&acc](int i, float2* at) { __stcg(at, make_float2(acc(i), acc(i + 1))); };
    };
    each_pair<kDk>(dk_, columns_[0], from(dk));
    each_pair<kDv>(dv_, columns_[1], from(dv));
  }

 private:
  template <int kFloats, class F>
  __device__ __forceinline__ void each_pair(float2* sums, int columns, F f) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (8 * r >= rows_) return;
      float2* at = sums + 4 * r * columns;
      asm volatile("" : "+l"(at));  // or the compiler makes it anew for every pair
#pragma unroll
      for (int j = 0; j < kFloats / 4; ++j) {
        if (j < kSurePairs<kFloats> || 8 * j < columns) f(4 * j + 2 * r, at + 4 * j);
      }
    }
  }

  int columns_[2];  // of dK's and dV's rows
  float2 *dk_, *dv_;
  int rows_;  // from `row` on
};

/// Of a piece of a plan: the block that a chain goes on from (`at_start`), or that it leaves.
__device__ __forceinline__ float* carried_block(const Params& p, const Chain90& chain,
                                                bool at_start) {
  const Carry carry = p.common.plan.orders[chain.cursor.order].carries[chain.cursor.chain];
  return p.common.carried.block(at_start ? carry.in : carry.out);
}

/// What lies_apart().
__device__ __forceinline__ float* block_apart(const Params& p, const Chain90& chain) {
  const auto& sizes = p.common.sizes;
  return p.workspace.apart + int64_t{chain.key} * 128 * (sizes.head_dim + sizes.head_dim_v);
}

/// dK and dV before the first visit: 0, or what the chain that this one continues has left.
template <class Element, class Dk, class Dv>
__device__ void begin_key_tile(const Params& p, const Chain90& chain, int half, int row, Dk& dk,
                               Dv& dv) {
  clear(dk);
  clear(dv);
  if (!chain.continues) return;
  const bool carried = p.common.carried.blocks != nullptr;
  const KeySums<Element, size(Dk{}), size(Dv{})> sums(p, chain, half, row);
  if (!carried) sums.wait(p, chain);
  if (carried || lies_apart(chain, true)) {
    float* block = carried ? carried_block(p, chain, true) : block_apart(p, chain);
    return KeyBlock<size(Dk{}), size(Dv{})>(p, chain, block, row).read(dk, dv);
  }
  sums.read(dk, dv, [](float, float sum) { return sum; });
}

/// Adds a warpgroup's half of dK and dV to those of the chains before it on the same KV tile: on
/// return the last chain holds the sum, and the others have left theirs for the next.
template <class Element, class Dk, class Dv>
__device__ void share_key_tile(const Params& p, const Chain90& chain, int half, int row, Dk& dk,
                               Dv& dv) {
  const bool carried = p.common.carried.blocks != nullptr;
  const KeySums<Element, size(Dk{}), size(Dv{})> sums(p, chain, half, row);
  if (!carried && chain.addend > 0 && !chain.continues) sums.wait(p, chain);
  if (carried || lies_apart(chain, false)) {
    float* block = carried ? carried_block(p, chain, false) : block_apart(p, chain);
    KeyBlock<size(Dk{}), size(Dv{})>(p, chain, block, row).write(dk, dv);
    if (!carried) sums.pass(chain.addend + 1);
    return;
  }
  if (joins_sum(chain)) sums.read(dk, dv, [](float mine, float sum) { return mine + sum; });
  if (chain.addend + 1 < chain.addends) {
    sums.write(dk, dv, chain.addend + 1);
  } else {
    __syncwarp();  // before results overwrite what other lanes of the quad have read
  }
}

}  // namespace verbatim::cuda::sm90::bwd
