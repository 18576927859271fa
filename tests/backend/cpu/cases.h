// Tensors of one problem, filled from a seed, and the naive double attention they are judged by.
#pragma once

#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/kernels.h"

namespace verbatim::test {

/// A tensor that owns its memory: poisoned with NaN, optionally with gaps between heads.
struct Tensor {
  std::vector<char> memory;
  TensorView view;
  Tensor() = default;
  Tensor(Dtype dtype, std::array<int64_t, 4> shape, int64_t gap = 0);
  float get(int64_t b, int64_t l, int64_t h, int64_t d) const;
  void set(int64_t b, int64_t l, int64_t h, int64_t d, float x);
  void fill(uint32_t seed, float amplitude);
};

struct Case {
  Problem problem;
  Mask mask;
  Tensor q, k, v, dout, o, dq, dk, dv;
  std::vector<float> lse_memory;
  RowView lse;

  Case(const Problem& problem, Mask mask, uint32_t seed, int64_t gap = 0, float amplitude = 1);
  ForwardTensors forward() const;
  BackwardTensors backward() const;
  /// Runs both plans with the given kernels.
  void run(const Plan& forward_plan, const Plan& backward_plan, int threads,
           const cpu::KernelTable& kernels = cpu::kernels());
  /// The bits of every output.
  std::vector<uint64_t> bits() const;
};

/// Largest |ours - exact| over the largest |exact| (at least 0.1: a gradient may be exactly zero)
/// of each output, in the order o, lse, dq, dk, dv.
/// Infinities and NaN must agree exactly, else the result is Inf.
std::vector<double> errors(const Case& c);
std::string describe(const Case& c);

}  // namespace verbatim::test
