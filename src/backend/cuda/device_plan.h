// Plans on a device: uploaded once, found again by who owns them.
#pragma once

#include <memory>
#include <optional>

#include "backend/cuda/device/params.h"
#include "backend/cuda/kernel.h"
#include "backend/cuda/runtime.h"
#include "backend/cuda/upload.h"
#include "backend/local_piece.h"
#include "verbatim/plan.h"

namespace verbatim::cuda {

/// A Plan on a device, with what launches need to know of it. Safe to use from several threads.
class DevicePlan {
 public:
  DevicePlan(const Device& device, const Plan& plan) : DevicePlan(device, plan, nullptr) {}
  DevicePlan(const Device& device, const LocalPiece& piece)
      : DevicePlan(device, piece.plan, &piece) {}
  const PlanView& view() const { return view_; }
  PlanExtent extent() const {
    return {max_q_tiles_, max_kv_tiles_, tile_sums_, live_heads_, piece_};
  }
  int32_t max_q_tiles() const { return max_q_tiles_; }
  int32_t max_kv_tiles() const { return max_kv_tiles_; }
  int32_t tile_sums() const { return tile_sums_; }
  bool empty_rows() const { return empty_rows_; }
  double shown_by_blocks() const { return shown_; }
  bool heads_in_pairs() const { return pairs_; }
  LiveHeads live_heads() const { return live_heads_; }
  /// Of a piece's backward: copies the turns that rows begin with to HandOff::row_turn.
  void set_turns(void* row_turn, cudaStream_t stream) const;

  /// Where it lies, for launches.
  const Upload& upload() const { return *upload_; }

 private:
  DevicePlan(const Device& device, const Plan& plan, const LocalPiece* piece);

  std::optional<Upload> upload_;
  PlanView view_{};
  const int32_t* first_turns_ = nullptr;
  size_t turns_ = 0;
  int32_t max_q_tiles_ = 0, max_kv_tiles_ = 0;
  LiveHeads live_heads_{};
  double shown_ = 0;
  int32_t tile_sums_ = 0;
  bool empty_rows_ = false, piece_ = false, pairs_ = false;
};

/// The plan on the device: uploaded at its first use without waiting for anything, then found in
/// microseconds without any call of CUDA. The 64 last used stay while anybody has the plan, and all
/// that a launch or a graph uses; a later upload frees the others.
std::shared_ptr<const DevicePlan> device_plan(const Device& device,
                                              const std::shared_ptr<const Plan>& plan);

/// Lets `graph`, and all that is made of it, keep the plan.
void keep_with(cudaGraph_t graph, const std::shared_ptr<const DevicePlan>& plan);

}  // namespace verbatim::cuda
