// Memory of one pass: which sums take turns, where partial sums wait, and workers' tiles.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/sums.h"
#include "verbatim/plan.h"
#include "verbatim/tensor.h"

namespace verbatim::cpu {

/// Hands out cache-line aligned pieces of one allocation, zero at first; without an allocation it
/// only counts.
class Arena {
 public:
  Arena() = default;
  explicit Arena(int64_t floats);
  float* take(int64_t floats);
  int64_t floats() const { return used_; }

 private:
  struct Free {
    void operator()(float* p) const;
  };
  std::unique_ptr<float[], Free> data_;
  int64_t used_ = 0;
};

/// A visit goes through its queries in blocks of this many, so that their scores stay in the L2
/// cache beside the tiles of K and V. No result depends on it: every element of an output is one
/// chain of additions in the order of its tile. A multiple of kLanes.
inline constexpr int64_t kQueryBlock = 64;

/// Largest tiles and dims of a plan.
struct TileLimits {
  int64_t q = 0, kv = 0;
  int64_t head_dim, head_dim_v;
  explicit TileLimits(const Plan& plan);
};

/// The sums of a plan, and offsets of the f32 partial results that fit no output.
/// Backward: the dQ rows of each query head, then the dK and dV of each KV tile; places only for
/// sums of several addends whose output is 16 bits wide (an f32 output is its own place, and rows
/// of a piece have theirs in the caller's memory), and for what pieces of a chain pass on apart.
/// Forward: the query tiles of each query head; places for the state of split rows.
class SumLayout : public SumNumbers {
 public:
  explicit SumLayout(const Plan& plan, bool piece = false);

  int64_t floats() const { return floats_; }
  /// Offset of the partial result, in floats.
  int64_t row_place(int32_t head, int32_t q_head, int32_t q_tile) const;
  /// `apart`: of what pieces of a chain pass on apart from the tile's sum.
  int64_t kv_place(int32_t head, int32_t kv_tile, bool apart) const;

  /// Floats of the state of a split row tile: O, then maximum and sum of the softmax.
  static int64_t state_floats(int64_t rows, int64_t head_dim_v);

 private:
  struct OrderPlaces {
    std::vector<int64_t> row, kv, apart;  // per tile, inside one query head or one KV head
    int64_t row_floats = 0, kv_floats = 0;
  };
  const Plan& plan_;
  std::vector<OrderPlaces> places_;   // per order of the plan
  std::vector<int64_t> first_float_;  // per head
  int64_t floats_ = 0;
};

}  // namespace verbatim::cpu
