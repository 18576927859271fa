#include "backend/cuda/device_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <mutex>
#include <utility>

#include "mask/slice.h"
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
      dropout_origins;
};

/// Pinned memory for the reports of plans: allocated many at a time, used again and again.
class Reports {
 public:
  static Reports& instance() {
    static Reports* reports = new Reports;  // never destroyed: the driver may be gone before us
    return *reports;
  }

  WaitReport* take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      constexpr size_t kBlock = 256;
      WaitReport* block = nullptr;
      check(cudaHostAlloc(reinterpret_cast<void**>(&block), kBlock * sizeof(WaitReport),
                          cudaHostAllocPortable | cudaHostAllocMapped),
            "cuda.plan");
      for (size_t i = 0; i < kBlock; ++i) free_.push_back(block + i);
    }
    WaitReport* report = free_.back();
    free_.pop_back();
    *report = {};
    return report;
  }

  void give(WaitReport* report) {
    const std::lock_guard lock(mutex_);
    free_.push_back(report);
  }

 private:
  std::mutex mutex_;
  std::vector<WaitReport*> free_;
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
                       const std::vector<DropoutOrigin>& dropout_origins) {
  const TileMap& tiles = *order.tiles;
  std::vector<Interval> queries, keys;
  for (const Slice& slice : tiles.slices) {
    const auto shown = tighten(slice);
    if (!shown) continue;
    queries.push_back({shown->q_begin, shown->q_end});
    keys.push_back({shown->k_begin, shown->k_end});
  }
  return {.runs = blob.add(order.runs),
          .chains = blob.add(order.chains),
          .tasks = blob.add(order.tasks),
          .row_addends = blob.add(order.row_addends),
          .q_edges = blob.add(tiles.q_edges),
          .kv_edges = blob.add(tiles.kv_edges),
          .q_used = blob.add(used(tiles.q_edges, queries)),
          .kv_used = blob.add(used(tiles.kv_edges, keys)),
          .slice_ids = blob.add(tiles.slice_ids),
          .slices = blob.add(tiles.slices),
          .dropout_origins = blob.add(dropout_origins)};
}

}  // namespace

DevicePlan::DevicePlan(const Device& device, const Plan& plan)
    : device_(device.index),
      pass_(plan.pass),
      ordered_(plan.level != Level::not_guaranteed),
      orders_(plan.orders),
      order_of_head_(plan.order_of_head),
      placement_(plan.placement),
      kv_heads_(static_cast<int32_t>(plan.problem.kv_heads)),
      group_(static_cast<int32_t>(plan.problem.group())),
      uploads_(device.uploads) {
  const auto of = [](const auto& v, auto&& wanted) { return std::ranges::any_of(v, wanted); };
  Blob blob;
  const DropoutOrigins dropout(plan);
  std::vector<OrderOffsets> offsets;
  for (const auto& order : orders_) {
    offsets.push_back(add_order(blob, *order, dropout.of_order[offsets.size()]));
    max_q_tiles_ = std::max(max_q_tiles_, order->tiles->q_tiles());
    max_kv_tiles_ = std::max(max_kv_tiles_, order->tiles->kv_tiles());
    shared_tiles_ |= of(order->chains, [](const Chain& c) { return c.addends > 1; });
    empty_rows_ |= of(order->row_addends, [](int32_t addends) { return addends == 0; });
  }
  live_heads_ = verbatim::live_heads(plan);
  residency_ = plan.residency;
  const int64_t heads = blob.add(order_of_head_);
  const int64_t sequences = blob.add(dropout.first_sequence);
  const int64_t placed = blob.add(placement_.tasks);
  const int64_t units = blob.add(placement_.worker_begin);
  const int64_t views = blob.add(std::vector<OrderView>(orders_.size()));

  std::vector<std::byte> bytes = blob.take();
  const DeviceGuard guard(device.index);
  const RelaxedCapture relaxed;
  check(cudaMallocFromPoolAsync(&memory_, bytes.size(), device.plans, uploads_), "cuda.plan");
  for (size_t i = 0; i < orders_.size(); ++i) {
    const OrderOffsets& o = offsets[i];
    const OrderView view{.runs = at<Run>(memory_, o.runs),
                         .chains = at<Chain>(memory_, o.chains),
                         .tasks = at<Task>(memory_, o.tasks),
                         .row_addends = at<int32_t>(memory_, o.row_addends),
                         .q_edges = at<int64_t>(memory_, o.q_edges),
                         .kv_edges = at<int64_t>(memory_, o.kv_edges),
                         .q_used = at<int32_t>(memory_, o.q_used),
                         .kv_used = at<int32_t>(memory_, o.kv_used),
                         .slice_ids = at<int32_t>(memory_, o.slice_ids),
                         .slices = at<Slice>(memory_, o.slices),
                         .dropout_origins = at<DropoutOrigin>(memory_, o.dropout_origins),
                         .q_tiles = orders_[i]->tiles->q_tiles(),
                         .kv_tiles = orders_[i]->tiles->kv_tiles()};
    std::memcpy(&bytes[views + i * sizeof(OrderView)], &view, sizeof(OrderView));
  }
  const bool queue = placement_.queue;
  view_ = {.orders = at<OrderView>(memory_, views),
           .order_of_head = at<int32_t>(memory_, heads),
           .first_sequence = at<int64_t>(memory_, sequences),
           .placed = at<PlacedTask>(memory_, placed),
           .unit_begin = queue ? nullptr : at<int32_t>(memory_, units),
           .unit_count = static_cast<int32_t>(queue ? placement_.tasks.size()
                                                    : placement_.worker_begin.size() - 1),
           .group = group_,
           .kv_heads = kv_heads_};

  // The runtime has copied `bytes` when this returns; the device need not have.
  check(cudaMemcpyAsync(memory_, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, uploads_),
        "cuda.plan");
  check(cudaEventCreateWithFlags(&uploaded_, cudaEventDisableTiming), "cuda.plan");
  check(cudaEventRecord(uploaded_, uploads_), "cuda.plan");
  report_ = Reports::instance().take();
}

DevicePlan::~DevicePlan() {
  int previous = 0;
  cudaGetDevice(&previous);
  if (previous != device_) cudaSetDevice(device_);  // as DeviceGuard
  cudaFreeAsync(memory_, uploads_);
  cudaEventDestroy(uploaded_);
  for (const Use& use : uses_) cudaEventDestroy(use.ended);
  if (previous != device_) cudaSetDevice(previous);
  Reports::instance().give(report_);
}

void DevicePlan::before_launch(cudaStream_t stream, bool capturing) const {
  if (capturing) {  // a graph cannot wait for an event from outside it
    const RelaxedCapture relaxed;
    check(cudaEventSynchronize(uploaded_), "cuda.plan");
  } else {
    check(cudaStreamWaitEvent(stream, uploaded_), "cuda.plan");
  }
}

void DevicePlan::after_launch(cudaStream_t stream) const {
  const std::lock_guard lock(mutex_);
  auto use = std::ranges::find(uses_, stream, &Use::stream);
  if (use == uses_.end()) {
    cudaEvent_t ended = nullptr;
    check(cudaEventCreateWithFlags(&ended, cudaEventDisableTiming), "cuda.plan");
    use = uses_.insert(use, {stream, ended});
  }
  check(cudaEventRecord(use->ended, stream), "cuda.plan");
}

bool DevicePlan::idle() const {
  const std::lock_guard lock(mutex_);
  for (const Use& use : uses_) {
    if (cudaEventQuery(use.ended) != cudaErrorNotReady) continue;
    (void)cudaGetLastError();  // which the next launch would take for its own
    return false;
  }
  return true;
}

bool DevicePlan::holds(const Device& device, const Plan& plan) const {
  const Placement& other = plan.placement;
  return device_ == device.index && pass_ == plan.pass && orders_ == plan.orders &&
         kv_heads_ == plan.problem.kv_heads && group_ == plan.problem.group() &&
         order_of_head_ == plan.order_of_head && placement_.queue == other.queue &&
         placement_.workers == other.workers && ordered_ == (plan.level != Level::not_guaranteed) &&
         placement_.worker_begin == other.worker_begin && placement_.tasks == other.tasks;
}

void DevicePlan::check_report() const {
  if (static_cast<volatile WaitReport*>(report_)->expired == 0) return;
  const WaitReport where = *report_;
  *report_ = {};
  const char* sum = pass_ == Pass::forward ? "O" : where.q_head >= 0 ? "dQ" : "dK and dV";
  Error::Details details;  // where other kernels may have held what the plan needs
  if (residency_ > 1) {
    details = {"order", fmt::format("one that needs {} workers at once", residency_),
               "as many multiprocessors that no other kernel holds", "descending, which needs one"};
  }
  throw Error(
      ErrorCode::device, pass_ == Pass::forward ? "cuda.forward" : "cuda.backward",
      fmt::format("a wait expired: {} of tile {} (batch {}, KV head {}, query head {} of "
                  "its group) was due for {}, and addend {} never came; detected here, it "
                  "stems from an earlier launch, whose results are undefined",
                  sum, where.tile, where.head / kv_heads_, where.head % kv_heads_, where.q_head,
                  where.addend == kSumDone ? "the place of an earlier sum"
                                           : fmt::format("addend {}", where.addend),
                  where.seen),
      std::move(details));
}

namespace {

struct Cache {
  static constexpr size_t kKept = 64;

  struct Entry {
    std::shared_ptr<const DevicePlan> plan;
    bool captured;
  };
  std::mutex mutex;
  std::list<Entry> entries;  // last used first
  std::list<Entry> retired;  // no longer kept, perhaps still in use

  static Cache& instance() {
    static Cache* cache = new Cache;  // as Reports
    return *cache;
  }

  /// Retires the plan that was not used for longest when too many are kept, and frees those that
  /// no launch and no thread uses any more.
  void trim() {
    const auto spare = [](const Entry& e) { return !e.captured; };
    if (std::ranges::count_if(entries, spare) >= int64_t{kKept}) {
      const auto last =
          std::prev(std::ranges::find_if(entries.rbegin(), entries.rend(), spare).base());
      retired.splice(retired.end(), entries, last);
    }
    for (auto entry = retired.begin(); entry != retired.end();) {
      const bool done = entry->plan.use_count() == 1 && entry->plan->idle();
      if (done) entry->plan->check_report();
      entry = done ? retired.erase(entry) : std::next(entry);
    }
  }
};

}  // namespace

std::shared_ptr<const DevicePlan> device_plan(const Device& device, const Plan& plan,
                                              bool capturing) {
  Cache& cache = Cache::instance();
  const std::lock_guard lock(cache.mutex);
  auto& entries = cache.entries;
  auto found =
      std::ranges::find_if(entries, [&](const auto& e) { return e.plan->holds(device, plan); });
  if (found == entries.end()) {
    const RelaxedCapture relaxed;  // another thread may be capturing
    if (!capturing) cache.trim();
    entries.push_front({std::make_shared<DevicePlan>(device, plan), false});
    found = entries.begin();
  }
  found->captured |= capturing;
  entries.splice(entries.begin(), entries, found);
  return entries.front().plan;
}

void check_reports(const Device& device) {
  Cache& cache = Cache::instance();
  const std::lock_guard lock(cache.mutex);
  for (const auto* list : {&cache.entries, &cache.retired}) {
    for (const auto& entry : *list) {
      if (entry.plan->device_index() == device.index) entry.plan->check_report();
    }
  }
}

}  // namespace verbatim::cuda
