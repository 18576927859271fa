// Plans on a device: uploaded once, found again by identity.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "backend/cuda/device/params.h"
#include "backend/cuda/runtime.h"
#include "plan/live_heads.h"
#include "verbatim/plan.h"

namespace verbatim::cuda {

/// A Plan on a device, with what launches need to know of it. Safe to use from several threads.
class DevicePlan {
 public:
  DevicePlan(const Device& device, const Plan& plan);
  ~DevicePlan();  // idle()
  DevicePlan(const DevicePlan&) = delete;
  DevicePlan& operator=(const DevicePlan&) = delete;

  int device_index() const { return device_; }
  const PlanView& view() const { return view_; }
  int32_t max_q_tiles() const { return max_q_tiles_; }
  int32_t max_kv_tiles() const { return max_kv_tiles_; }
  bool shared_tiles() const { return shared_tiles_; }
  bool empty_rows() const { return empty_rows_; }
  LiveHeads live_heads() const { return live_heads_; }
  WaitReport* report() const { return report_; }

  bool holds(const Device& device, const Plan& plan) const;

  /// Before a launch on `stream`: it will start after the upload.
  void before_launch(cudaStream_t stream, bool capturing) const;
  /// After a launch on `stream`: the plan is in use until it has ended.
  void after_launch(cudaStream_t stream) const;
  /// Whether all launches have ended.
  bool idle() const;
  /// Throws Error(device) with tile coordinates when a wait of an earlier launch has expired.
  void check_report() const;

 private:
  int device_;
  Pass pass_;
  bool ordered_;
  // What the plan consists of: shared orders keep their addresses from being used again.
  std::vector<std::shared_ptr<const HeadOrder>> orders_;
  std::vector<int32_t> order_of_head_;
  Placement placement_;
  int32_t kv_heads_ = 1, group_ = 1;

  struct Use {
    cudaStream_t stream;
    cudaEvent_t ended;  // the last launch on it
  };
  mutable std::mutex mutex_;
  mutable std::vector<Use> uses_;  // one a stream

  cudaStream_t uploads_;
  cudaEvent_t uploaded_ = nullptr;
  void* memory_ = nullptr;
  WaitReport* report_ = nullptr;
  PlanView view_{};
  int32_t max_q_tiles_ = 0, max_kv_tiles_ = 0, residency_ = 1;
  LiveHeads live_heads_{};
  bool shared_tiles_ = false, empty_rows_ = false;
};

/// The plan on the device: uploaded at its first use without waiting for anything, then found in
/// microseconds without any call of CUDA. Plans used in a stream capture stay for good, since a
/// graph refers to them; of the others the 64 last used stay, and what a launch still uses.
std::shared_ptr<const DevicePlan> device_plan(const Device& device, const Plan& plan,
                                              bool capturing);

/// check_report() of every plan that `device` holds.
void check_reports(const Device& device);

}  // namespace verbatim::cuda
