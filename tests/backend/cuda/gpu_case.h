// A problem on the GPU: guarded tensors here, their copies there.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/executor.h"
#include "backend/reference/compare.h"
#include "support/guarded_tensor.h"
#include "verbatim/mask.h"
#include "verbatim/schedule.h"

namespace verbatim::test {

/// The device to test on; null without one, for GTEST_SKIP.
const cuda::CudaBackend* gpu();
/// The arithmetic of plans: the device's, or VERBATIM_ARITHMETIC of the environment ("sm80": the
/// portable kernels on Hopper, too).
std::string gpu_arithmetic();

/// The message of the Error that `body` throws; "" when it throws none.
template <class Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// A plan as backends take it.
using SharedPlan = std::shared_ptr<const Plan>;
inline SharedPlan share(Plan plan) { return std::make_shared<const Plan>(std::move(plan)); }

/// A tensor and its copy on the device, guards and gaps included.
class GpuTensor {
 public:
  /// A dense layout, or one with `gap` elements between rows and the heads outside the rows.
  GpuTensor(Dtype dtype, std::array<int64_t, 4> shape, int64_t gap = 0);
  static GpuTensor rows(std::array<int64_t, 3> shape) {
    return GpuTensor(Dtype::f32, {1, shape[0], shape[1], shape[2]});
  }
  GpuTensor(GpuTensor&& other) noexcept;
  ~GpuTensor();

  GuardedTensor host;
  TensorView host_view() const;
  TensorView view() const;
  RowView row_view() const;
  void* memory() const { return device_; }  // as host.bytes()
  void upload();
  void download();
  /// A scale of each head, in both views (e4m3).
  void set_scales(std::vector<float> of_heads);

 private:
  void* device_ = nullptr;
  std::vector<float> scales_;
  void* device_scales_ = nullptr;
};

/// A mask under the name of its pattern.
struct Named {
  std::string name;
  Mask mask;
};
/// All fourteen patterns at about `length` tokens, more than 500.
std::vector<Named> patterns(int64_t length, int64_t kv_heads);

/// Head dims of Q and K, and of V.
struct HeadDims {
  int64_t qk, v;
  HeadDims(int64_t both) : qk(both), v(both) {}
  HeadDims(int64_t of_qk, int64_t of_v) : qk(of_qk), v(of_v) {}
};
/// "128", "192v128".
std::string to_string(const HeadDims& dims);
/// Those that the Hopper forward has instances of; others run on these (padded_test.cpp).
std::vector<HeadDims> hopper_head_dims();
/// And one of the portable kernels alone.
std::vector<HeadDims> every_head_dims();

/// bf16, 8 query heads on 2 KV heads.
Problem problem_of(const Mask& mask, const HeadDims& dims, int64_t batch = 2);

/// Sizes, mask and the tensors of both passes, filled from a seed, and scales of e4m3, which a
/// tensor has with a chance of 3 in 4. Outputs hold NaN.
struct GpuCase {
  GpuCase(const Problem& problem, Mask mask, uint64_t seed, int64_t gap = 0);

  Problem problem;
  Mask mask;
  GpuTensor q, k, v, dout, o, lse, dq, dk, dv;

  ForwardTensors forward() const;
  BackwardTensors backward() const;
  SharedPlan plan(Pass pass, const std::string& order, TileShape tile = {0, 0},
                  const std::string& placement = "auto", int32_t workers = 132,
                  const std::string& arithmetic = gpu_arithmetic()) const;

  std::vector<GpuTensor*> outputs() { return {&o, &lse, &dq, &dk, &dv}; }
  /// NaN into all outputs on the device, both passes, outputs back.
  void run(const cuda::CudaBackend& backend, const SharedPlan& forward, const SharedPlan& backward,
           void* stream = nullptr);
  void poison();
  /// Bytes of all outputs, as they came back: o, lse, dq, dk, dv.
  std::vector<std::vector<uint8_t>> bits();
  /// The outputs of a pass, of a backward the forward's too, against the double reference, whole or
  /// in some rows.
  Check check(Pass pass = Pass::backward, const std::optional<Selection>& rows = {});
  /// What is wrong with them; empty when nothing is.
  std::string examine(double& worst_ratio, Pass pass = Pass::backward);
};

}  // namespace verbatim::test
