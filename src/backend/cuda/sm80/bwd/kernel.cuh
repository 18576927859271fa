// The backward of one KV tile after another, in the order of the plan (FlashAttention-2,
// algorithm 2; dQ in a fixed order as in DASH, but any order):
//
//   for each chain:  K, V -> shared memory; dK = dV = 0
//     for each step: Q, dO of the next block arrive by cp.async while dQ of this one is added
//       S = Q K^T, dP = dO V^T      registers
//       P, dS -> shared memory      ------------------ barrier
//       dV += P^T dO, dK += dS^T Q  registers
//       dQ = dS K                   ------------------ wait for the row's turn, add, pass it on
//     dK, dV -> global memory
#pragma once

#include "backend/cuda/device/hand_off.cuh"
#include "backend/cuda/device/result.cuh"
#include "backend/cuda/device/score.cuh"
#include "backend/cuda/device/steps.cuh"
#include "backend/cuda/sm80/bwd/config.h"
#include "plan/chain_sums.h"

namespace verbatim::cuda::sm80 {

template <class Config>
class BackwardWorker {
  using Element = typename Config::Element;
  using Storage = typename Config::SharedStorage;
  using Dk = Accumulator<Config::kKeyRows, Config::kDkColumns>;
  using Dv = Accumulator<Config::kKeyRows, Config::kDvColumns>;
  using Scores = Accumulator<1, Config::kScoreColumns>;
  using RowGradient = Accumulator<1, Config::kDqColumns>;

 public:
  __device__ BackwardWorker(const BackwardParams& params, int32_t tile_sums, Storage& storage)
      : p_(params),
        s_(storage),
        space_(static_cast<float*>(params.workspace)),
        at_(BackwardWorkspace::of(params.sizes, tile_sums, params.carried.blocks != nullptr)) {}

  __device__ void operator()(int32_t head, const OrderView& order, const Chain& chain) {
    head_ = head;
    b_ = head / p_.sizes.kv_heads;
    kv_head_ = head % p_.sizes.kv_heads;
    key_ = static_cast<int32_t>(order.kv_edges[chain.tile]);
    at_key_ = static_cast<int32_t>(order.kv_rows[chain.tile]);
    keys_ = static_cast<int32_t>(order.kv_edges[chain.tile + 1]) - key_;

    Dk dk;
    Dv dv;
    if (chain.continues) {
      take_over(order, chain, dk, dv);
    } else {
      clear(dk);
      clear(dv);
    }
    Steps<Config::kBlockQ> steps(order, chain, order.q_edges, order.q_rows, order.q_used);
    Step next;
    bool more = steps.next(next);
    __syncthreads();  // the previous chain has read its K
    if (more) {
      load_keys(order.kv_used[chain.tile]);
      load_rows(next);
    }
    while (more) {
      const Step step = next;
      wait_copies<0>();
      const bool careful = __syncthreads_or(must_take_care(step));
      // K, V, Q, dO have arrived; the previous dS has been read
      score(order, step);
      __syncthreads();  // P and dS are written
      const int m = warp_ / 2 * Config::kKeyRows * 16, half = warp_ % 2;
      product<Config::kBlockQ, Lies::across_k>(careful, dv, s_.p, m, s_.dout,
                                               half * Config::kDvColumns * 8);
      product<Config::kBlockQ, Lies::across_k>(careful, dk, s_.ds, m, s_.q,
                                               half * Config::kDkColumns * 8);
      more = steps.next(next);
      __syncthreads();  // Q, dO and the rows' statistics have been read
      if (more) load_rows(next);
      add_rows(order, step, careful);
    }
    add_keys(order, chain, dk, dv);
  }

 private:
  __device__ int64_t q_head(const Step& step) const {
    return kv_head_ * p_.plan.group + step.q_head;
  }

  /// What a wait of this head is for.
  __device__ WaitReport expected(int32_t q_head, int32_t tile, int32_t addend) const {
    return {.pass = static_cast<int32_t>(Pass::backward),
            .batch = static_cast<int32_t>(b_),
            .kv_head = static_cast<int32_t>(kv_head_),
            .q_head = q_head,
            .tile = tile,
            .addend = addend};
  }

  /// In a partly masked tile a zero of P or dS may meet a NaN or an infinity that it does not see.
  __device__ bool must_take_care(const Step& step) {
    constexpr int kThreads = Config::kThreads;
    return step.id_count > 0 &&
           (nonfinite_copied<kThreads>(s_.q) || nonfinite_copied<kThreads>(s_.dout) ||
            nonfinite_copied<kThreads>(s_.k));
  }

  template <int kK, Lies kA, class Acc, class TileA, class TileB>
  static __device__ void product(bool careful, Acc& acc, TileA& a, int m, TileB& b, int n) {
    if (careful) {
      multiply_carefully<kK, kA, Lies::across_k>(acc, a, m, b, n);
    } else {
      multiply<Element, kK, kA, Lies::across_k>(acc, a, m, b, n);
    }
  }

  __device__ void load_keys(int32_t used) {
    constexpr int kThreads = Config::kThreads;
    copy_async<kThreads>(s_.k, p_.k.at<const Element>(b_, at_key_, kv_head_), p_.k.row, used,
                         p_.sizes.head_dim);
    copy_async<kThreads>(s_.v, p_.v.at<const Element>(b_, at_key_, kv_head_), p_.v.row, used,
                         p_.sizes.head_dim_v);
    commit_copies();
  }

  __device__ void load_rows(const Step& step) {
    constexpr int kThreads = Config::kThreads;
    const int64_t h = q_head(step);
    copy_async<kThreads>(s_.q, p_.q.at<const Element>(b_, step.at, h), p_.q.row, step.used,
                         p_.sizes.head_dim);
    copy_async<kThreads>(s_.dout, p_.dout.at<const Element>(b_, step.at, h), p_.dout.row, step.used,
                         p_.sizes.head_dim_v);
    commit_copies();
    const int row = threadIdx.x;
    if (row >= Config::kBlockQ) return;
    const int64_t i = p_.sizes.row_index(b_, h, step.at + row);
    const float lse = row < step.rows ? p_.lse[i] : -INFINITY;
    s_.lse_log2[row] = lse == -INFINITY ? INFINITY : lse * kLog2e;
    s_.delta[row] = row < step.rows ? space_[at_.delta + i] : 0;
  }

  /// S and dP, then P (with dropout) and dS to shared memory.
  __device__ void score(const OrderView& order, const Step& step) {
    Scores s, dp;  // (kBlockQ, kTileKv)
    clear(s);
    clear(dp);
    const int m = warp_ / Config::kWarpsK * 16;
    const int n = warp_ % Config::kWarpsK * Config::kScoreColumns * 8;
    multiply<Element, Config::kHeadDim, Lies::along_k, Lies::along_k>(s, s_.q, m, s_.k, n);
    multiply<Element, Config::kHeadDimV, Lies::along_k, Lies::along_k>(dp, s_.dout, m, s_.v, n);

    const int row = m + lane_ / 4, col = n + lane_ % 4 * 2;
    const Block block{step.row, key_, step.rows, keys_};
    const uint32_t seen = visible<Config::kScoreColumns>(order, step, block, row, col);
    const Dropout& dropout = p_.scalars.dropout;
    const uint32_t keep = kept<Config::kScoreColumns>(dropout, p_.plan, head_, step.tile,
                                                      q_head(step), step.row + row, key_ + col);
#pragma unroll
    for (int j = 0; j < Config::kScoreColumns; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int r = row + 8 * i;
        float probability[2], gradient[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const uint32_t bit = 1u << (4 * j + 2 * i + e);
          const float x = score_log2(p_.scalars, s[0][j][2 * i + e]);
          const float full = seen & bit ? exp2f(x - s_.lse_log2[r]) : 0;
          const float weight = keep & bit ? dropout.scale : 0;
          probability[e] = full * weight;
          const float change = fmaf(dp[0][j][2 * i + e], weight, -s_.delta[r]);
          gradient[e] = seen & bit ? full * change * softcap_slope(p_.scalars, x) : 0;
        }
        store_pair(s_.p.at(r, col + 8 * j), probability[0], probability[1]);
        store_pair(s_.ds.at(r, col + 8 * j), gradient[0], gradient[1]);
      }
    }
  }

  /// dQ of the step as an addend of its rows: the first stores, the last converts.
  __device__ void add_rows(const OrderView& order, const Step& step, bool careful) {
    RowGradient dq;  // (kBlockQ, kHeadDim)
    clear(dq);
    const int m = warp_ / Config::kWarpsK * 16;
    const int n = warp_ % Config::kWarpsK * Config::kDqColumns * 8;
    product<Config::kTileKv, Lies::along_k>(careful, dq, s_.ds, m, s_.k, n);

    const int64_t h = q_head(step);
    int32_t* turn = p_.hand_off.row(b_ * p_.sizes.q_heads + h, step.tile);
    const bool first = step.addend == 0;
    const bool last = step.addend == order.row_addends[step.tile] - 1;
    if (!first && step.first) {
      if (threadIdx.x == 0) {
        wait_turn(p_.hand_off, turn, expected(step.q_head, step.tile, step.addend));
      }
      __syncthreads();
    }
    float* sums = p_.carried.blocks ? p_.carried.dq : space_ + at_.dq;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = m + lane_ / 4 + 8 * i;
      if (r >= step.rows) continue;
      float* sum = sums + p_.sizes.row_index(b_, h, step.at + r) * p_.sizes.head_dim;
      add_row<Config::kDqColumns>(dq[0], i, n, p_.sizes.head_dim, sum, first, last,
                                  p_.dq.at<Element>(b_, step.at + r, h), p_.scalars.scale);
    }
    if (!last && step.last) {
      __syncthreads();
      if (threadIdx.x == 0) pass_turn(turn, step.addend + 1);
    }
  }

  /// By the CTA, until it is the chain's turn to add to its KV tile.
  __device__ void wait_for_keys(const Chain& chain) {
    if (threadIdx.x == 0) {
      wait_turn(p_.hand_off, p_.hand_off.key(head_, chain.tile),
                expected(WaitReport::keys, chain.tile, chain.addend));
    }
    __syncthreads();
  }

  /// Where the sums of a chain's KV tile lie while they grow: their first rows.
  struct KeySums {
    float *dk, *dv;
  };
  /// `goes_in`: those that it goes on from; else those that it leaves.
  __device__ KeySums key_sums(const OrderView& order, const Chain& chain, bool goes_in) const {
    if (order.carries) {
      const Carry carry = order.carries[&chain - order.chains];
      float* block = p_.carried.block(goes_in ? carry.in : carry.out);
      return {block, block + int64_t{keys_} * p_.sizes.head_dim};
    }
    const int64_t index = p_.sizes.key_index(b_, kv_head_, at_key_);
    float* space = space_ + (lies_apart(chain, goes_in) ? at_.apart : 0);
    return {space + at_.dk + index * p_.sizes.head_dim,
            space + at_.dv + index * p_.sizes.head_dim_v};
  }

  /// dK and dV start with what the chain before left.
  __device__ void take_over(const OrderView& order, const Chain& chain, Dk& dk, Dv& dv) {
    wait_for_keys(chain);
    const KeySums sums = key_sums(order, chain, true);
    const int m = warp_ / 2 * Config::kKeyRows * 16, half = warp_ % 2;
#pragma unroll
    for (int j = 0; j < Config::kKeyRows; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int r = m + 16 * j + lane_ / 4 + 8 * i;
        read_row<Config::kDkColumns>(dk[j], i, half * Config::kDkColumns * 8,
                                     r < keys_ ? p_.sizes.head_dim : 0,
                                     sums.dk + r * p_.sizes.head_dim);
        read_row<Config::kDvColumns>(dv[j], i, half * Config::kDvColumns * 8,
                                     r < keys_ ? p_.sizes.head_dim_v : 0,
                                     sums.dv + r * p_.sizes.head_dim_v);
      }
    }
  }

  /// dK and dV of a chain: written, or added in turn when chains share the KV tile.
  __device__ void add_keys(const OrderView& order, const Chain& chain, Dk& dk, Dv& dv) {
    const bool first = !joins_sum(chain), last = chain.addend == chain.addends - 1;
    if (chain.addend > 0 && !chain.continues) wait_for_keys(chain);
    const KeySums sums = key_sums(order, chain, false);
    const int m = warp_ / 2 * Config::kKeyRows * 16, half = warp_ % 2;
#pragma unroll
    for (int j = 0; j < Config::kKeyRows; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int r = m + 16 * j + lane_ / 4 + 8 * i;
        if (r >= keys_) continue;
        add_row<Config::kDkColumns>(dk[j], i, half * Config::kDkColumns * 8, p_.sizes.head_dim,
                                    sums.dk + r * p_.sizes.head_dim, first, last,
                                    p_.dk.at<Element>(b_, at_key_ + r, kv_head_), p_.scalars.scale);
        add_row<Config::kDvColumns>(dv[j], i, half * Config::kDvColumns * 8, p_.sizes.head_dim_v,
                                    sums.dv + r * p_.sizes.head_dim_v, first, last,
                                    p_.dv.at<Element>(b_, at_key_ + r, kv_head_), 1);
      }
    }
    if (!last) {
      __syncthreads();
      if (threadIdx.x == 0) pass_turn(p_.hand_off.key(head_, chain.tile), chain.addend + 1);
    }
  }

  /// Adds this lane's elements of row half `i` to the sum of one row, or ends the sum. Sums pass
  /// between SMs, so they bypass L1.
  template <int kColumns>
  __device__ void add_row(float (&acc)[kColumns][4], int i, int n, int cols, float* sum, bool first,
                          bool last, Element* out, float scale) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const int col = n + 8 * j + lane_ % 4 * 2;
      if (col >= cols) continue;
      float2 value = make_float2(acc[j][2 * i], acc[j][2 * i + 1]);
      float2* at = reinterpret_cast<float2*>(sum + col);
      if (!first) {
        const float2 before = __ldcg(at);
        value = make_float2(before.x + value.x, before.y + value.y);
      }
      if (last) {
        store_pair(out + col, result_of(value.x, scale), result_of(value.y, scale));
      } else {
        __stcg(at, value);
      }
    }
  }

  /// This lane's elements of row half `i` from the sum of one row; 0 from column `cols` on.
  template <int kColumns>
  __device__ void read_row(float (&acc)[kColumns][4], int i, int n, int cols, const float* sum) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const int col = n + 8 * j + lane_ % 4 * 2;
      const float2 value =
          col < cols ? __ldcg(reinterpret_cast<const float2*>(sum + col)) : make_float2(0, 0);
      acc[j][2 * i] = value.x;
      acc[j][2 * i + 1] = value.y;
    }
  }

  const BackwardParams& p_;
  Storage& s_;
  float* space_;
  BackwardWorkspace at_;
  const int warp_ = threadIdx.x / 32, lane_ = threadIdx.x % 32;
  int32_t head_ = 0, keys_ = 0;
  int64_t b_ = 0, kv_head_ = 0;
  int32_t key_ = 0, at_key_ = 0;  // the KV tile's first key: its position, and in the tensors
};

template <class Config>
__global__ __launch_bounds__(Config::kThreads,
                             1) void backward(const __grid_constant__ BackwardParams params,
                                              int32_t tile_sums) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& storage = *reinterpret_cast<typename Config::SharedStorage*>(memory);
  BackwardWorker<Config> worker(params, tile_sums, storage);
  for_each_chain(params.plan, params.hand_off, storage.ticket, worker);
  if (ends_given_up(params.hand_off, storage.ticket)) {
    destroy_results(params, threadIdx.x, Config::kThreads);
  }
}

}  // namespace verbatim::cuda::sm80
