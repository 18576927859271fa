#include "backend/cuda/device_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <utility>

#include "backend/cuda/driver.h"
#include "mask/slice.h"
#include "plan/chain_sums.h"
#include "plan/dropout_origins.h"

namespace verbatim::cuda {
namespace {

/// Arrays gathered for one copy. Offsets become addresses when the device memory is known.
class Blob {
 public:
  template <class T>
  int64_t add(const std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T>);
    const int64_t begin = (static_cast<int64_t>(bytes_.size()) + 15) / 16 * 16;
    bytes_.resize(begin + values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(&bytes_[begin], values.data(), values.size() * sizeof(T));
    return begin;
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

template <class T>
const T* at(const void* base, int64_t offset) {
  return reinterpret_cast<const T*>(static_cast<const std::byte*>(base) + offset);
}

/// Offsets of one order's arrays.
struct OrderOffsets {
  int64_t runs, chains, tasks, row_addends, q_edges, kv_edges, q_used, kv_used, slice_ids, slices,
      dropout_origins, q_rows, kv_rows, carries;
};

/// OrderView::q_used or kv_used of tiles with these edges, from what each slice shows of the axis.
std::vector<int32_t> used(const std::vector<int64_t>& edges, const std::vector<Interval>& shown) {
  std::vector<int32_t> used(edges.size() - 1);
  for (const auto& [begin, end] : shown) {
    const auto after = std::ranges::upper_bound(edges, begin);
    for (size_t t = after - edges.begin() - 1; t < used.size() && edges[t] < end; ++t) {
      used[t] = std::max(used[t], static_cast<int32_t>(std::min(edges[t + 1], end) - edges[t]));
    }
  }
  return used;
}

OrderOffsets add_order(Blob& blob, const HeadOrder& order,
                       const std::vector<DropoutOrigin>& dropout_origins, const LocalHead* piece) {
  const TileMap& tiles = *order.tiles;
  std::vector<Interval> queries, keys;
  for (const Slice& slice : tiles.slices) {
    const auto shown = tighten(slice);
    if (!shown) continue;
    queries.push_back({shown->q_begin, shown->q_end});
    keys.push_back({shown->k_begin, shown->k_end});
  }
  const int64_t q_edges = blob.add(tiles.q_edges), kv_edges = blob.add(tiles.kv_edges);
  return {.runs = blob.add(order.runs.all()),
          .chains = blob.add(order.chains),
          .tasks = blob.add(order.tasks),
          .row_addends = blob.add(order.row_addends),
          .q_edges = q_edges,
          .kv_edges = kv_edges,
          .q_used = blob.add(used(tiles.q_edges, queries)),
          .kv_used = blob.add(used(tiles.kv_edges, keys)),
          .slice_ids = blob.add(tiles.slice_ids),
          .slices = blob.add(tiles.slices),
          .dropout_origins = blob.add(dropout_origins),
          .q_rows = piece ? blob.add(piece->q_rows) : q_edges,
          .kv_rows = piece ? blob.add(piece->kv_rows) : kv_edges,
          .carries = piece ? blob.add(piece->carries) : -1};
}

}  // namespace

DevicePlan::DevicePlan(const Device& device, const Plan& plan, const LocalPiece* piece) {
  Blob blob;
  DropoutOrigins dropout(plan);
  if (piece) dropout.first_sequence = piece->first_sequence;
  std::vector<OrderOffsets> offsets;
  for (const auto& order : plan.orders) {
    const size_t i = offsets.size();
    offsets.push_back(
        add_order(blob, *order, dropout.of_order[i], piece ? &piece->heads[i] : nullptr));
    max_q_tiles_ = std::max(max_q_tiles_, order->tiles->q_tiles());
    max_kv_tiles_ = std::max(max_kv_tiles_, order->tiles->kv_tiles());
    shown_ += piece ? piece->shown_by_blocks : order->tiles->shown_by_blocks();
    empty_rows_ |= std::ranges::find(order->row_addends, 0) != order->row_addends.end();
  }
  shown_ /= static_cast<double>(plan.orders.size());
  tile_sums_ = verbatim::tile_sums(plan);
  live_heads_ = verbatim::live_heads(plan);
  if (piece &&
      plan.pass == Pass::backward) {  // which has its sums elsewhere, and leaves other rows
    piece_ = true;
    tile_sums_ = 0;
    empty_rows_ = false;
    live_heads_ = {static_cast<int32_t>(plan.problem.kv_heads),
                   static_cast<int32_t>(plan.problem.group())};
  }
  const Placement& placement = plan.placement;
  const int64_t turns = piece ? blob.add(piece->first_addends) : -1;
  const int64_t heads = blob.add(plan.order_of_head);
  const int64_t sequences = blob.add(dropout.first_sequence);
  const int64_t placed = blob.add(placement.tasks.list());
  const int64_t units = blob.add(placement.worker_begin);
  const int64_t views = blob.add(std::vector<OrderView>(plan.orders.size()));

  std::vector<std::byte> bytes = blob.take();
  upload_.emplace(device, bytes.size());
  const void* memory = upload_->data();
  for (size_t i = 0; i < plan.orders.size(); ++i) {
    const OrderOffsets& o = offsets[i];
    const OrderView view{.runs = at<Run>(memory, o.runs),
                         .chains = at<Chain>(memory, o.chains),
                         .tasks = at<Task>(memory, o.tasks),
                         .row_addends = at<int32_t>(memory, o.row_addends),
                         .q_edges = at<int64_t>(memory, o.q_edges),
                         .kv_edges = at<int64_t>(memory, o.kv_edges),
                         .q_rows = at<int64_t>(memory, o.q_rows),
                         .kv_rows = at<int64_t>(memory, o.kv_rows),
                         .carries = o.carries < 0 ? nullptr : at<Carry>(memory, o.carries),
                         .q_used = at<int32_t>(memory, o.q_used),
                         .kv_used = at<int32_t>(memory, o.kv_used),
                         .slice_ids = at<int32_t>(memory, o.slice_ids),
                         .slices = at<Slice>(memory, o.slices),
                         .dropout_origins = at<DropoutOrigin>(memory, o.dropout_origins),
                         .q_tiles = plan.orders[i]->tiles->q_tiles(),
                         .kv_tiles = plan.orders[i]->tiles->kv_tiles()};
    std::memcpy(&bytes[views + i * sizeof(OrderView)], &view, sizeof(OrderView));
  }
  const bool queue = placement.queue;
  view_ = {.orders = at<OrderView>(memory, views),
           .order_of_head = at<int32_t>(memory, heads),
           .first_sequence = at<int64_t>(memory, sequences),
           .placed = at<PlacedTask>(memory, placed),
           .unit_begin = queue ? nullptr : at<int32_t>(memory, units),
           .unit_count = static_cast<int32_t>(queue ? placement.tasks.size()
                                                    : placement.worker_begin.size() - 1),
           .group = static_cast<int32_t>(plan.problem.group()),
           .kv_heads = static_cast<int32_t>(plan.problem.kv_heads),
           .first_q_head = piece ? static_cast<int32_t>(piece->q_head) : 0};
  if (turns >= 0) first_turns_ = at<int32_t>(memory, turns);
  if (piece) turns_ = piece->first_addends.size();

  upload_->copy(bytes);
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
