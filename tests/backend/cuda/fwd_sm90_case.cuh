// What the driver of the Hopper forward stands on: device memory, plans, a naive kernel, tensors
// with gaps and guard bands.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "backend/cuda/device/params.h"
#include "verbatim/error.h"
#include "verbatim/mask.h"

namespace verbatim::cuda {
namespace {

void check(cudaError_t status) {
  if (status != cudaSuccess) {
    throw Error(ErrorCode::device, "fwd_sm90_test", cudaGetErrorString(status));
  }
}

/// Device memory, freed with its owner.
template <class T>
class Device {
 public:
  explicit Device(size_t count) : count_(count) {
    check(cudaMalloc(&data_, std::max<size_t>(count, 1) * sizeof(T)));
  }
  explicit Device(const std::vector<T>& host) : Device(host.size()) {
    check(cudaMemcpy(data_, host.data(), host.size() * sizeof(T), cudaMemcpyDefault));
  }
  Device(const Device&) = delete;
  Device(Device&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(other.count_) {}
  ~Device() { cudaFree(data_); }

  T* get() const { return data_; }
  size_t size() const { return count_; }
  void poison() { check(cudaMemset(data_, 0xff, count_ * sizeof(T))); }  // NaN in every dtype
  std::vector<T> host() const {
    std::vector<T> copy(count_);
    check(cudaMemcpy(copy.data(), data_, count_ * sizeof(T), cudaMemcpyDefault));
    return copy;
  }

 private:
  T* data_ = nullptr;
  size_t count_;
};

enum class Walk { rightwards, leftwards };

/// A forward plan on the device: rows from the bottom, one chain each; heads side by side as long
/// as their K and V stay in L2.
class DevicePlan {
 public:
  DevicePlan(const Problem& problem, const Mask& mask, TileShape tile, Walk walk) {
    std::vector<OrderView> views;
    std::vector<int32_t> variant_tasks;
    for (const HeadMask& head : mask.variants()) {
      views.push_back(upload(TileMap(head, tile), static_cast<int32_t>(problem.group()), walk));
      variant_tasks.push_back(tasks_);
    }
    std::vector<int32_t> order_of_head;
    std::vector<int64_t> first_sequence;  // dropout takes every batch entry for one sequence
    for (int64_t b = 0; b < problem.batch; ++b) {
      for (int64_t h = 0; h < problem.kv_heads; ++h) {
        order_of_head.push_back(mask.variant(b, h));
        first_sequence.push_back(b);
      }
    }
    const int64_t head_bytes = 4 * std::max<int64_t>(problem.kv_len, 1) * problem.head_dim;
    const auto heads = static_cast<int32_t>(order_of_head.size());
    const auto section =
        static_cast<int32_t>(std::clamp<int64_t>((24 << 20) / head_bytes, 1, heads));
    std::vector<PlacedTask> placed;
    for (int32_t first = 0; first < heads; first += section) {
      const int32_t last = std::min(first + section, heads);
      const int32_t longest = *std::max_element(variant_tasks.begin(), variant_tasks.end());
      for (int32_t task = 0; task < longest; ++task) {
        for (int32_t head = first; head < last; ++head) {
          if (task < variant_tasks[order_of_head[head]]) placed.push_back({head, task});
        }
      }
    }
    view_ = {.orders = keep(views),
             .order_of_head = keep(order_of_head),
             .first_sequence = keep(first_sequence),
             .placed = keep(placed),
             .unit_begin = nullptr,
             .unit_count = static_cast<int32_t>(placed.size()),
             .group = static_cast<int32_t>(problem.group()),
             .kv_heads = static_cast<int32_t>(problem.kv_heads)};
  }

  const PlanView& view() const { return view_; }

 private:
  template <class T>
  const T* keep(const std::vector<T>& host) {
    auto memory = std::make_shared<Device<T>>(host);
    kept_.push_back(memory);
    return memory->get();
  }

  OrderView upload(const TileMap& map, int32_t group, Walk walk) {
    std::vector<Run> runs;
    std::vector<Chain> chains;
    std::vector<Task> tasks;
    for (int32_t q_tile = map.q_tiles() - 1; q_tile >= 0; --q_tile) {
      std::vector<TileRun> row(map.row(q_tile).begin(), map.row(q_tile).end());
      if (walk == Walk::leftwards) std::reverse(row.begin(), row.end());
      for (int32_t q_head = 0; q_head < group; ++q_head) {
        const auto begin = static_cast<int32_t>(runs.size());
        for (const TileRun& tiles : row) {
          const bool left = walk == Walk::leftwards;
          runs.push_back({.q_head = q_head,
                          .first = left ? tiles.last - 1 : tiles.first,
                          .count = tiles.last - tiles.first,
                          .step = left ? -1 : 1,
                          .slice_begin = tiles.slice_begin,
                          .slice_count = tiles.slice_count});
        }
        const auto chain = static_cast<int32_t>(chains.size());
        chains.push_back({q_tile, begin, static_cast<int32_t>(runs.size()), q_head, 0, 1});
        tasks.push_back({chain, chain + 1});
      }
    }
    tasks_ = static_cast<int32_t>(tasks.size());
    OrderView view{};
    view.runs = keep(runs);
    view.chains = keep(chains);
    view.tasks = keep(tasks);
    view.q_edges = view.q_rows = keep(map.q_edges);
    view.kv_edges = view.kv_rows = keep(map.kv_edges);
    view.slice_ids = keep(map.slice_ids);
    view.slices = keep(map.slices);
    view.dropout_origins = keep(std::vector<DropoutOrigin>(map.q_tiles()));
    view.q_tiles = map.q_tiles();
    view.kv_tiles = map.kv_tiles();
    return view;
  }

  std::vector<std::shared_ptr<void>> kept_;
  PlanView view_{};
  int32_t tasks_ = 0;
};

/// The slices of every head, for the naive kernel.
struct NaiveMask {
  const Slice* slices;
  const int32_t* begin;       // [variants + 1]
  const int32_t* variant_of;  // [batch * kv_heads]
};

__device__ double to_double(uint16_t bits, bool bf16) {
  return bf16 ? __bfloat162float(__ushort_as_bfloat16(bits)) : __half2float(__ushort_as_half(bits));
}
__device__ double rounded(double x, bool bf16) {
  return bf16 ? __bfloat162float(__double2bfloat16(x)) : __half2float(__double2half(x));
}

/// One block a row: O and LSE in double (o, lse), and O with P and O rounded to the dtype (base).
__global__ void naive(Sizes sizes, Scalars scalars, double scale, NaiveMask mask, TensorRef q,
                      TensorRef k, TensorRef v, bool bf16, double* o, double* base, double* lse) {
  extern __shared__ double p[];  // [kv_len]
  __shared__ double joined[2];
  const int64_t row = blockIdx.x, head = blockIdx.y, b = blockIdx.z;
  const int64_t kv_head = head / (sizes.q_heads / sizes.kv_heads);
  const int32_t variant = mask.variant_of[b * sizes.kv_heads + kv_head];
  const uint16_t* q_row = q.at<uint16_t>(b, row, head);
  for (int64_t key = threadIdx.x; key < sizes.kv_len; key += blockDim.x) {
    bool seen = false;
    for (int32_t s = mask.begin[variant]; s < mask.begin[variant + 1]; ++s) {
      const Slice& slice = mask.slices[s];
      seen |= slice.q_begin <= row && row < slice.q_end && slice.k_begin <= key &&
              key < slice.k_end && slice.lo <= key - row && key - row <= slice.hi;
    }
    double score = -INFINITY;
    if (seen) {
      score = 0;
      const uint16_t* k_row = k.at<uint16_t>(b, key, kv_head);
      for (int i = 0; i < sizes.head_dim; ++i) {
        score += to_double(q_row[i], bf16) * to_double(k_row[i], bf16);
      }
      score *= scale;
      if (scalars.softcap != 0) score = scalars.softcap * tanh(score / scalars.softcap);
    }
    p[key] = score;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    double top = -INFINITY, sum = 0;
    for (int64_t key = 0; key < sizes.kv_len; ++key) top = fmax(top, p[key]);
    for (int64_t key = 0; key < sizes.kv_len; ++key)
      sum += p[key] == -INFINITY ? 0 : exp(p[key] - top);
    joined[0] = top;
    joined[1] = sum;
    lse[sizes.row_index(b, head, row)] = sum == 0 ? -INFINITY : top + log(sum);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < sizes.head_dim; i += blockDim.x) {
    double exact = 0, coarse = 0;
    for (int64_t key = 0; key < sizes.kv_len; ++key) {
      if (p[key] == -INFINITY) continue;
      const Dropout& dropout = scalars.dropout;
      if (dropout.enabled() && !dropout.keep(b, head, row, key)) continue;
      const double weight = exp(p[key] - joined[0]) / joined[1] * dropout.scale;
      const double value = to_double(v.at<uint16_t>(b, key, kv_head)[i], bf16);
      exact += weight * value;
      coarse += rounded(weight, bf16) * value;
    }
    const int64_t at = sizes.row_index(b, head, row) * sizes.head_dim + i;
    o[at] = exact;
    base[at] = rounded(coarse, bf16);
  }
}

__global__ void fill(uint16_t* to, int64_t count, uint32_t seed, float spread, bool bf16) {
  for (int64_t i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) {
    const PhiloxBlock bits = philox4x32_10({{static_cast<uint32_t>(i), seed, 0, 0}}, 7);
    const float u = (bits.word[0] + 1.0f) * 0x1p-32f, w = bits.word[1] * 0x1p-32f;
    const float x = spread * sqrtf(-2 * logf(u)) * cospif(2 * w);
    to[i] = bf16 ? __bfloat16_as_ushort(__float2bfloat16(x)) : __half_as_ushort(__float2half(x));
  }
}

/// A (batch, length, heads, dim) tensor inside a poisoned allocation, with gaps after heads and
/// rows and a guard band on both sides.
class Tensor {
 public:
  Tensor(int64_t batch, int64_t length, int64_t heads, int64_t dim, int64_t gap)
      : shape_{batch, length, heads, dim},
        head_(dim + gap),
        row_(heads * head_ + 2 * gap),
        batch_(length * row_ + 8 * gap),
        memory_(2 * kGuard + batch * batch_) {
    memory_.poison();
  }
  TensorRef ref() const { return {memory_.get() + kGuard, batch_, row_, head_}; }
  Device<uint16_t>& memory() { return memory_; }
  int64_t offset(int64_t b, int64_t l, int64_t h) const {
    return kGuard + b * batch_ + l * row_ + h * head_;
  }
  /// Fills rows [0, lengths[b]) of every head; the rest stays NaN.
  void randomize(uint32_t seed, float spread, bool bf16, const std::vector<int64_t>& lengths) {
    Device<uint16_t> random(shape_[0] * shape_[1] * shape_[2] * shape_[3]);
    fill<<<1024, 256>>>(random.get(), random.size(), seed, spread, bf16);
    check(cudaGetLastError());
    const size_t width = shape_[3] * 2;
    for (int64_t b = 0; b < shape_[0]; ++b) {
      for (int64_t h = 0; h < shape_[2]; ++h) {
        check(cudaMemcpy2D(memory_.get() + offset(b, 0, h), row_ * 2,
                           random.get() + (b * shape_[1] * shape_[2] + h) * shape_[3],
                           shape_[2] * width, width, lengths[b], cudaMemcpyDefault));
      }
    }
  }

 private:
  static constexpr int64_t kGuard = 1024;
  std::array<int64_t, 4> shape_;
  int64_t head_, row_, batch_;
  Device<uint16_t> memory_;
};

}  // namespace
}  // namespace verbatim::cuda
