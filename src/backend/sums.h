// Which sums of a plan take turns, and the small things that executors on the host share.
#pragma once

#include <cstdint>
#include <vector>

#include "verbatim/plan.h"
#include "verbatim/tensor.h"

namespace verbatim {

/// Numbers of the sums of a plan: of each head the query tiles of each query head (dQ rows in the
/// backward, the state of the softmax in the forward), then the KV tiles (dK and dV).
class SumNumbers {
 public:
  explicit SumNumbers(const Plan& plan);

  int64_t sums() const { return sums_; }
  int64_t row_sum(int32_t head, int32_t q_head, int32_t q_tile) const;
  int64_t kv_sum(int32_t head, int32_t kv_tile) const;

 private:
  const Plan& plan_;
  std::vector<int64_t> first_;  // per head
  int64_t sums_ = 0;
};

/// Address of row (b, l, h).
inline void* row_address(const TensorView& t, int64_t b, int64_t l, int64_t h) {
  return static_cast<char*>(t.data) + t.offset(b, l, h) * size_of(t.dtype);
}

/// dQ = 0 in the rows that no chain visits.
void clear_unvisited_rows(const Plan& plan, const TensorView& dq);

/// exp(x) and log(x) by fixed operations in double: a C library may pick other instructions on
/// another CPU. Relative errors below 1e-11; exp_fixed(x) is 0 below -700 and inf above 700; x of
/// log_fixed is positive and normal.
double exp_fixed(double x);
double log_fixed(double x);

}  // namespace verbatim
