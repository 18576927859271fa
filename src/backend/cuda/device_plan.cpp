#include "backend/cuda/device_plan.h"

#include <algorithm>
#include <list>
#include <map>
#include <mutex>
#include <utility>

#include "backend/cuda/driver.h"
#include "backend/cuda/plan_bytes.h"
#include "backend/cuda/spread_runs.h"
#include "plan/chain_sums.h"
#include "plan/head_pairs.h"

namespace verbatim::cuda {
DevicePlan::DevicePlan(const Device& device, const Plan& plan, const LocalPiece* piece) {
  for (const auto& order : plan.orders) {
    max_q_tiles_ = std::max(max_q_tiles_, order->tiles->q_tiles());
    max_kv_tiles_ = std::max(max_kv_tiles_, order->tiles->kv_tiles());
    shown_ += piece ? piece->shown_by_blocks : order->tiles->shown_by_blocks();
    empty_rows_ |= std::ranges::find(order->row_addends, 0) != order->row_addends.end();
  }
  shown_ /= static_cast<double>(plan.orders.size());
  tile_sums_ = verbatim::tile_sums(plan);
  live_heads_ = verbatim::live_heads(plan);
  pairs_ = shown_ < 1 && verbatim::heads_in_pairs(plan);
  if (piece &&
      plan.pass == Pass::backward) {  // which has its sums elsewhere, and leaves other rows
    piece_ = true;
    tile_sums_ = 0;
    empty_rows_ = false;
    live_heads_ = {static_cast<int32_t>(plan.problem.kv_heads),
                   static_cast<int32_t>(plan.problem.group())};
  }
  const PlanBytes bytes(plan, piece);
  upload_.emplace(device, static_cast<size_t>(bytes.size()));
  const void* memory = upload_->data();
  view_ = bytes.view(memory);
  first_turns_ = bytes.first_turns(memory);
  if (piece) turns_ = piece->first_addends.size();
  const auto made = bytes.make(memory);
  std::function<void(cudaStream_t)> write;
  if (const auto [lists, count, most] = bytes.spreads(memory); count > 0)
    write = [=](cudaStream_t stream) { spread_runs(lists, count, most, stream); };
  upload_->copy({made.get(), static_cast<size_t>(bytes.copied())}, write);
}

void DevicePlan::set_turns(void* row_turn, cudaStream_t stream) const {
  if (turns_ == 0) return;
  check(cudaMemcpyAsync(row_turn, first_turns_, turns_ * sizeof(int32_t), cudaMemcpyDeviceToDevice,
                        stream),
        "cuda.piece");
}

namespace {

/// The plans of one device.
struct Uploads {
  static constexpr int kKept = 64;
  struct Known {
    std::weak_ptr<const Plan> of;
    std::shared_ptr<const DevicePlan> plan;
    bool is_of(const std::shared_ptr<const Plan>& other) const {
      return !of.owner_before(other) && !other.owner_before(of);
    }
  };

  std::mutex mutex;
  // Freed here alone: who drops the last other reference may not call CUDA.
  std::list<Known> all;  // last used first

  static Uploads& to(int device) {
    static std::mutex mutex;
    static auto* uploads = new std::map<int, Uploads>;  // kept: the driver may be gone before us
    const std::lock_guard lock(mutex);
    return (*uploads)[device];
  }

  /// Makes room for another: frees plans that nobody has any more, and those that were not used for
  /// longest when too many are kept, unless a launch, a graph or a thread uses them.
  void trim() {
    int kept = 1;
    std::erase_if(all, [&](const Known& known) {
      const bool keep = !known.of.expired() && ++kept <= kKept;
      return !keep && known.plan.use_count() == 1 && known.plan->upload().idle();
    });
  }
};

}  // namespace

std::shared_ptr<const DevicePlan> device_plan(const Device& device,
                                              const std::shared_ptr<const Plan>& plan) {
  Uploads& uploads = Uploads::to(device.index);
  const std::lock_guard lock(uploads.mutex);
  auto& all = uploads.all;
  auto found = std::ranges::find_if(all, [&](const auto& upload) { return upload.is_of(plan); });
  if (found == all.end()) {
    const RelaxedCapture relaxed;  // somebody may be capturing
    uploads.trim();
    all.push_front({plan, std::make_shared<DevicePlan>(device, *plan)});
    found = all.begin();
  }
  all.splice(all.begin(), all, found);
  return all.front().plan;
}

void keep_with(cudaGraph_t graph, const std::shared_ptr<const DevicePlan>& plan) {
  using Kept = std::shared_ptr<const DevicePlan>;
  auto kept = std::make_unique<Kept>(plan);
  cudaUserObject_t object = nullptr;
  const RelaxedCapture relaxed;
  // Runs in a thread of the driver's, which may not call CUDA: the cache frees what it lets go.
  const auto let_go = [](void* of) { delete static_cast<Kept*>(of); };
  check(cudaUserObjectCreate(&object, kept.get(), let_go, 1, cudaUserObjectNoDestructorSync),
        "cuda.graph");
  kept.release();  // the object's
  const cudaError_t status = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
  if (status == cudaSuccess) return;
  cudaUserObjectRelease(object, 1);
  check(status, "cuda.graph");
}

}  // namespace verbatim::cuda
