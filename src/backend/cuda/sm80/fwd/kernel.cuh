// The forward of one query tile after another with the online softmax (FlashAttention-2,
// algorithm 1). K and V have one buffer each: a buffer is refilled as soon as its product is done.
//
//   for each chain:  Q -> shared memory; O = 0, max = -inf, sum = 0
//     for each step:  S = Q K^T   | then K of the next step starts to arrive
//                     softmax     | registers
//                     O += P V    | then V of the next step starts to arrive
//     O / sum, LSE -> global memory; chains that share the tile merge theirs in turn
#pragma once

#include "backend/cuda/device/hand_off.cuh"
#include "backend/cuda/device/result.cuh"
#include "backend/cuda/device/score.cuh"
#include "backend/cuda/device/steps.cuh"
#include "backend/cuda/sm80/fwd/config.h"

namespace verbatim::cuda::sm80 {

template <class Config>
class ForwardWorker {
  using Element = typename Config::Element;
  using Storage = typename Config::SharedStorage;
  using Scores = Accumulator<1, Config::kScoreColumns>;
  using Out = Accumulator<1, Config::kOutColumns>;

  /// The softmax so far of this lane's two rows (lane / 4 and 8 below), equal in four lanes.
  struct Softmax {
    float maximum[2] = {-INFINITY, -INFINITY};
    float sum[2] = {0, 0};
  };

 public:
  __device__ ForwardWorker(const ForwardParams& params, Storage& storage)
      : p_(params),
        s_(storage),
        space_(static_cast<float*>(params.workspace)),
        at_(ForwardWorkspace::of(params.sizes)) {}

  __device__ void operator()(int32_t head, const OrderView& order, const Chain& chain) {
    head_ = head;
    b_ = head / p_.sizes.kv_heads;
    kv_head_ = head % p_.sizes.kv_heads;
    h_ = kv_head_ * p_.plan.group + chain.q_head;
    q_tile_ = chain.tile;
    row_ = static_cast<int32_t>(order.q_edges[chain.tile]);
    at_row_ = static_cast<int32_t>(order.q_rows[chain.tile]);
    rows_ = static_cast<int32_t>(order.q_edges[chain.tile + 1]) - row_;

    Out o;  // (kTileQ, kHeadDimV)
    clear(o);
    Softmax softmax;
    Steps<Config::kBlockKv> steps(order, chain, order.kv_edges, order.kv_rows, order.kv_used);
    Step next;
    bool more = steps.next(next);
    __syncthreads();  // the previous chain has read its Q and V
    if (more) {
      copy_async<Config::kThreads>(s_.q, p_.q.at<const Element>(b_, at_row_, h_), p_.q.row,
                                   order.q_used[chain.tile], p_.sizes.head_dim);
      load_k(next);
      load_v(next);
    }
    while (more) {
      const Step step = next;
      wait_copies<1>();
      __syncthreads();  // Q and K have arrived
      Scores s;         // (kTileQ, kBlockKv)
      clear(s);
      multiply<Element, Config::kHeadDim, Lies::along_k, Lies::along_k>(s, s_.q, 16 * warp_, s_.k,
                                                                        0);
      more = steps.next(next);
      __syncthreads();  // K has been read
      more ? load_k(next) : commit_copies();
      attend(order, step, s, softmax, o);
      wait_copies<1>();
      // In a partly masked tile a zero of P may meet a NaN or an infinity that it does not see.
      const bool careful = __syncthreads_or(
          step.id_count > 0 && nonfinite_copied<Config::kThreads>(s_.v));  // V has arrived
      careful ? add_values_carefully(s, o) : add_values(s, o);
      __syncthreads();  // V has been read
      more ? load_v(next) : commit_copies();
    }
    finish(chain, softmax, o);
  }

 private:
  __device__ void load_k(const Step& step) {
    copy_async<Config::kThreads>(s_.k, p_.k.at<const Element>(b_, step.at, kv_head_), p_.k.row,
                                 step.used, p_.sizes.head_dim);
    commit_copies();
  }
  __device__ void load_v(const Step& step) {
    copy_async<Config::kThreads>(s_.v, p_.v.at<const Element>(b_, step.at, kv_head_), p_.v.row,
                                 step.used, p_.sizes.head_dim_v);
    commit_copies();
  }

  /// S becomes P (with dropout); sum and O are brought to the new maximum.
  __device__ void attend(const OrderView& order, const Step& step, Scores& s, Softmax& softmax,
                         Out& o) {
    const int row = 16 * warp_ + lane_ / 4, col = lane_ % 4 * 2;
    const Block block{row_, step.row, rows_, step.rows};
    const uint32_t seen = visible<Config::kScoreColumns>(order, step, block, row, col);
    const Dropout& dropout = p_.scalars.dropout;
    const uint32_t keep = kept<Config::kScoreColumns>(dropout, p_.plan, head_, q_tile_, h_,
                                                      row_ + row, step.row + col);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float maximum = softmax.maximum[i];
#pragma unroll
      for (int j = 0; j < Config::kScoreColumns; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[0][j][2 * i + e];
          x = seen >> (4 * j + 2 * i + e) & 1 ? score_log2(p_.scalars, x) : -INFINITY;
          maximum = fmaxf(maximum, x);
        }
      }
      maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, 1));
      maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, 2));
      const float base = maximum == -INFINITY ? 0 : maximum;
      const float decay = exp2f(softmax.maximum[i] - base);
      softmax.maximum[i] = maximum;
      float sum = 0;
#pragma unroll
      for (int j = 0; j < Config::kScoreColumns; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[0][j][2 * i + e];
          x = exp2f(x - base);
          sum += x;
          x = keep >> (4 * j + 2 * i + e) & 1 ? x * dropout.scale : 0;
        }
      }
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      softmax.sum[i] = fmaf(softmax.sum[i], decay, sum);
#pragma unroll
      for (int j = 0; j < Config::kOutColumns; ++j) {
        o[0][j][2 * i] *= decay;
        o[0][j][2 * i + 1] *= decay;
      }
    }
  }

  /// O += P V. A row of P lies in registers exactly as mma wants its A operand.
  __device__ void add_values(const Scores& s, Out& o) {
#pragma unroll
    for (int k = 0; k < Config::kBlockKv; k += 16) {
      const auto& left = s[0][k / 8];
      const auto& right = s[0][k / 8 + 1];
      const uint32_t a[4] = {pack(left[0], left[1]), pack(left[2], left[3]),
                             pack(right[0], right[1]), pack(right[2], right[3])};
#pragma unroll
      for (int j = 0; j < Config::kOutColumns; j += 2) {
        uint32_t b[4];
        load_b<Lies::across_k>(b, s_.v, 8 * j, k);
        mma<Element>(o[0][j], a, b[0], b[1]);
        mma<Element>(o[0][j + 1], a, b[2], b[3]);
      }
    }
  }
  /// The same where a zero of P adds nothing, whatever V holds.
  __device__ void add_values_carefully(const Scores& s, Out& o) {
#pragma unroll
    for (int j = 0; j < Config::kScoreColumns; ++j) {
#pragma unroll 1
      for (int t = 0; t < 4; ++t) {  // the lane of the quad that holds columns 2 t and 2 t + 1
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float p = static_cast<float>(
              static_cast<Element>(__shfl_sync(~0u, s[0][j][e], lane_ / 4 * 4 + t)));
          if (p == 0) continue;
#pragma unroll
          for (int n = 0; n < 2 * Config::kOutColumns; ++n) {
            const int col = n / 2 * 8 + lane_ % 4 * 2 + n % 2;
            float& sum = o[0][n / 2][e / 2 * 2 + n % 2];
            sum = fmaf(p, static_cast<float>(*s_.v.at(8 * j + 2 * t + e % 2, col)), sum);
          }
        }
      }
    }
  }
  static __device__ uint32_t pack(float x, float y) {
    const auto pair = round_pair(x, y, Element{});
    return reinterpret_cast<const uint32_t&>(pair);
  }

  /// Merges this chain's part of the tile in its turn; the last writes O and LSE.
  __device__ void finish(const Chain& chain, Softmax& softmax, Out& o) {
    int32_t* turn = p_.hand_off.row(b_ * p_.sizes.q_heads + h_, chain.tile);
    const bool first = chain.addend == 0, last = chain.addend == chain.addends - 1;
    if (!first) {
      if (threadIdx.x == 0) {
        wait_turn(p_.hand_off, turn,
                  {.pass = static_cast<int32_t>(Pass::forward),
                   .batch = static_cast<int32_t>(b_),
                   .kv_head = static_cast<int32_t>(kv_head_),
                   .q_head = chain.q_head,
                   .tile = chain.tile,
                   .addend = chain.addend});
      }
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = 16 * warp_ + lane_ / 4 + 8 * i;
      const int64_t index = p_.sizes.row_index(b_, h_, at_row_ + r);
      if (r < rows_ && !first) merge(index, i, softmax, o);
      __syncwarp();  // all four lanes of a row have read its maximum and sum
      if (r >= rows_) continue;
      last ? write(at_row_ + r, index, i, softmax, o) : keep(index, i, softmax, o);
    }
    if (!last) {
      __syncthreads();
      if (threadIdx.x == 0) pass_turn(turn, chain.addend + 1);
    }
  }

  __device__ float* sums(int64_t index) const {
    return space_ + at_.o + index * p_.sizes.head_dim_v;
  }

  __device__ void merge(int64_t index, int i, Softmax& softmax, Out& o) {
    const float before = __ldcg(space_ + at_.maximum + index);
    const float maximum = fmaxf(before, softmax.maximum[i]);
    const float base = maximum == -INFINITY ? 0 : maximum;
    const float old_weight = exp2f(before - base), weight = exp2f(softmax.maximum[i] - base);
    const float sum = __ldcg(space_ + at_.sum + index);
    softmax.maximum[i] = maximum;
    softmax.sum[i] = fmaf(sum, old_weight, softmax.sum[i] * weight);
    for_each_pair(o, i, [&](int col, float& x, float& y) {
      const float2 part = __ldcg(reinterpret_cast<const float2*>(sums(index) + col));
      x = fmaf(part.x, old_weight, x * weight);
      y = fmaf(part.y, old_weight, y * weight);
    });
  }

  __device__ void keep(int64_t index, int i, const Softmax& softmax, Out& o) {
    if (lane_ % 4 == 0) {
      __stcg(space_ + at_.maximum + index, softmax.maximum[i]);
      __stcg(space_ + at_.sum + index, softmax.sum[i]);
    }
    for_each_pair(o, i, [&](int col, float x, float y) {
      __stcg(reinterpret_cast<float2*>(sums(index) + col), make_float2(x, y));
    });
  }

  __device__ void write(int64_t row, int64_t index, int i, const Softmax& softmax, Out& o) {
    const bool empty = softmax.sum[i] == 0;  // no key was seen; NaN is not empty
    const float inverse = empty ? 0 : 1 / softmax.sum[i];
    if (lane_ % 4 == 0) {
      p_.lse[index] = empty ? -INFINITY : softmax.maximum[i] / kLog2e + logf(softmax.sum[i]);
    }
    Element* out = p_.o.at<Element>(b_, row, h_);
    for_each_pair(o, i, [&](int col, float x, float y) {
      store_pair(out + col, empty ? 0 : result_of(x, inverse), empty ? 0 : result_of(y, inverse));
    });
  }

  /// Calls body(col, x, y) for this lane's pairs of elements in row half `i` of O.
  template <class Body>
  __device__ void for_each_pair(Out& o, int i, Body body) {
#pragma unroll
    for (int j = 0; j < Config::kOutColumns; ++j) {
      const int col = 8 * j + lane_ % 4 * 2;
      if (col < p_.sizes.head_dim_v) body(col, o[0][j][2 * i], o[0][j][2 * i + 1]);
    }
  }

  const ForwardParams& p_;
  Storage& s_;
  float* space_;
  ForwardWorkspace at_;
  const int warp_ = threadIdx.x / 32, lane_ = threadIdx.x % 32;
  int32_t head_ = 0, q_tile_ = 0, rows_ = 0;
  int64_t b_ = 0, kv_head_ = 0, h_ = 0;
  int32_t row_ = 0, at_row_ = 0;  // of the query tile's first row: its position, and in the tensors
};

template <class Config>
__global__ __launch_bounds__(Config::kThreads,
                             1) void forward(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& storage = *reinterpret_cast<typename Config::SharedStorage*>(memory);
  ForwardWorker<Config> worker(params, storage);
  for_each_chain(params.plan, params.hand_off, storage.ticket, worker);
  if (ends_given_up(params.hand_off, storage.ticket)) {
    destroy_results(params, threadIdx.x, Config::kThreads);
  }
}

}  // namespace verbatim::cuda::sm80
