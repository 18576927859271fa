// Plans on a device: uploaded once, found again by who owns them.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>

#include "backend/cuda/device/params.h"
#include "backend/cuda/in_flight.h"
#include "backend/cuda/kernel.h"
#include "backend/cuda/runtime.h"
#include "backend/local_piece.h"
#include "verbatim/plan.h"

namespace verbatim::cuda {

/// A Plan on a device, with what launches need to know of it. Safe to use from several threads.
class DevicePlan {
 public:
  DevicePlan(const Device& device, const Plan& plan) : DevicePlan(device, plan, nullptr) {}
  DevicePlan(const Device& device, const LocalPiece& piece)
      : DevicePlan(device, piece.plan, &piece) {}
  ~DevicePlan();  // its memory goes when all launches have ended
  DevicePlan(const DevicePlan&) = delete;
  DevicePlan& operator=(const DevicePlan&) = delete;

  const PlanView& view() const { return view_; }
  PlanExtent extent() const {
    return {max_q_tiles_, max_kv_tiles_, shared_tiles_, live_heads_, piece_};
  }
  int32_t max_q_tiles() const { return max_q_tiles_; }
  int32_t max_kv_tiles() const { return max_kv_tiles_; }
  bool shared_tiles() const { return shared_tiles_; }
  bool empty_rows() const { return empty_rows_; }
  LiveHeads live_heads() const { return live_heads_; }
  /// Of a piece's backward: copies the turns that rows begin with to HandOff::row_turn.
  void set_turns(void* row_turn, cudaStream_t stream) const;

  /// Before a launch on `stream`, or into the `graph` that it captures: it will start after the
  /// upload.
  void before_launch(cudaStream_t stream, cudaGraph_t graph) const;
  /// After a launch: the plan is in use until `end`.
  void in_use_until(std::shared_ptr<const End> end) const;
  /// Nobody will know when a launch has ended: the plan is in use for good.
  void keep() const noexcept { kept_ = true; }
  /// Whether all launches have ended.
  bool idle() const;

 private:
  DevicePlan(const Device& device, const Plan& plan, const LocalPiece* piece);

  int device_;

  mutable std::atomic<bool> kept_ = false;
  mutable std::mutex mutex_;
  mutable std::deque<std::shared_ptr<const End>> uses_;  // launches that may not have ended
  mutable size_t ask_at_ = 8;                            // so many of them whether they have

  cudaStream_t uploads_;
  cudaEvent_t uploaded_ = nullptr;
  void* memory_ = nullptr;
  PlanView view_{};
  const int32_t* first_turns_ = nullptr;
  size_t turns_ = 0;
  int32_t max_q_tiles_ = 0, max_kv_tiles_ = 0;
  LiveHeads live_heads_{};
  bool shared_tiles_ = false, empty_rows_ = false, piece_ = false;
};

/// The plan on the device: uploaded at its first use without waiting for anything, then found in
/// microseconds without any call of CUDA. The 64 last used stay while anybody has the plan, and all
/// that a launch or a graph uses; a later upload frees the others.
std::shared_ptr<const DevicePlan> device_plan(const Device& device,
                                              const std::shared_ptr<const Plan>& plan);

/// Lets `graph`, and all that is made of it, keep the plan.
void keep_with(cudaGraph_t graph, const std::shared_ptr<const DevicePlan>& plan);

}  // namespace verbatim::cuda
