#include "backend/cuda/run_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "backend/cuda/driver.h"
#include "backend/cuda/in_flight.h"
#include "plan/chain_sums.h"
#include "plan/live_heads.h"
#include "verbatim/error.h"

namespace verbatim::cuda {
namespace {

/// Byte offsets of one launch's memory: counters, zeroed in-stream, then the kernel's workspace.
struct Layout {
  int64_t row_turns, key_turns, workspace, end;

  Layout(const Problem& problem, int32_t max_q_tiles, int32_t max_kv_tiles, int64_t kernel_bytes) {
    const auto aligned = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
    constexpr int64_t kCounter = sizeof(int32_t);
    row_turns = aligned(3 * kCounter);  // behind ticket, aborted and finished
    key_turns = row_turns + aligned(problem.batch * problem.q_heads * max_q_tiles * kCounter);
    workspace = key_turns + aligned(problem.batch * problem.kv_heads * max_kv_tiles * kCounter);
    end = workspace + aligned(kernel_bytes);
  }

  HandOff hand_off(void* memory, const DevicePlan& plan, int32_t residency, WaitReport* report,
                   int64_t spin_limit_ns) const {
    const auto at = [&](int64_t offset) {
      return reinterpret_cast<int32_t*>(static_cast<std::byte*>(memory) + offset);
    };
    return {.ticket = at(0),
            .aborted = at(sizeof(int32_t)),
            .finished = at(2 * sizeof(int32_t)),
            .row_turn = at(row_turns),
            .key_turn = at(key_turns),
            .max_q_tiles = plan.max_q_tiles(),
            .max_kv_tiles = plan.max_kv_tiles(),
            .residency = residency,
            .report = report,
            .spin_limit_ns = spin_limit_ns};
  }
};

/// RunOptions::workspace, if it is as large and as aligned as a launch needs.
void* callers_workspace(const RunOptions& run, int64_t bytes) {
  constexpr uintptr_t kAlignment = 256;
  if (run.workspace_bytes < bytes) {
    throw Error(ErrorCode::invalid_argument, "cuda", "the workspace is too small",
                {"workspace_bytes", fmt::to_string(run.workspace_bytes),
                 fmt::format("{} or more", bytes), fmt::to_string(bytes)});
  }
  if (reinterpret_cast<uintptr_t>(run.workspace) % kAlignment != 0) {
    throw Error(ErrorCode::invalid_argument, "cuda", "the workspace is not aligned",
                {"workspace", fmt::format("{}", run.workspace), "an address divisible by 256", ""});
  }
  return run.workspace;
}

/// Tells those who have to know when a launch has ended, also one that an error cut short.
class Launch {
 public:
  /// A launch of a plan that needs `residency` CTAs at once on `stream`, into `graph` or none.
  Launch(const Device& device, const DevicePlan& plan, cudaStream_t stream, cudaGraph_t graph,
         int32_t residency)
      : device_(device),
        plan_(plan),
        stream_(stream),
        graph_(graph),
        multiprocessors_(residency > 1 ? multiprocessors_of(device, stream)
                                       : device.multiprocessors) {
    // A graph cannot wait for launches outside it, so there what needs others starts as a whole.
    together_ = residency > 1 && (graph || must_start_together(residency, multiprocessors_));
    if (residency > 1 && !graph) turnstile_.emplace(device, stream, together_);
  }
  ~Launch() {
    if (graph_) return;  // keeps the plan itself
    try {
      const auto end = std::make_shared<const End>(device_, stream_);
      plan_.upload().in_use_until(end);
      if (turnstile_) turnstile_->passed(end);
    } catch (const std::exception&) {
      plan_.upload().keep();
    }
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  int32_t multiprocessors() const { return multiprocessors_; }
  bool together() const { return together_; }

 private:
  const Device& device_;
  const DevicePlan& plan_;
  cudaStream_t stream_;
  cudaGraph_t graph_;
  int32_t multiprocessors_;
  bool together_ = false;
  std::optional<Turnstile> turnstile_;
};

}  // namespace

std::pair<int32_t, int32_t> extent_of(const Plan& plan) {
  int32_t q_tiles = 0, kv_tiles = 0;
  for (const auto& order : plan.orders) {
    q_tiles = std::max(q_tiles, order->tiles->q_tiles());
    kv_tiles = std::max(kv_tiles, order->tiles->kv_tiles());
  }
  return {q_tiles, kv_tiles};
}

PlanCounts counts_of(const Plan& plan) {
  const auto [q_tiles, kv_tiles] = extent_of(plan);
  return {q_tiles, kv_tiles, std::ssize(plan.placement.tasks)};
}

template <class Params>
void run_plan(const Device& device, const Kernel& kernel,
              const std::function<void(const Params&, const LaunchContext&)>& launch,
              const Plan& plan, const DevicePlan& held, const RunOptions& run,
              int64_t spin_limit_ns, Params params, const RecordView& record) {
  const auto stream = static_cast<cudaStream_t>(run.stream);
  const Layout layout(plan.problem, held.max_q_tiles(), held.max_kv_tiles(),
                      kernel.workspace_bytes(plan.problem, held.extent()));
  const Scratch own(device, run.workspace ? 0 : layout.end, stream);
  void* memory = run.workspace ? callers_workspace(run, layout.end) : own.data();
  check(cudaMemsetAsync(memory, 0, layout.workspace, stream), kernel.name);
  held.set_turns(static_cast<std::byte*>(memory) + layout.row_turns, stream);
  params.sizes = sizes_of(plan.problem);
  params.scalars = scalars_of(plan.problem, run);
  params.plan = held.view();
  params.hand_off = layout.hand_off(memory, held, plan.residency, device.report, spin_limit_ns);
  params.workspace = static_cast<std::byte*>(memory) + layout.workspace;
  const Launch started(device, held, stream, graph_of(stream), plan.residency);
  launch(params, {.stream = stream,
                  .multiprocessors = started.multiprocessors(),
                  .residency = plan.residency,
                  .together = started.together(),
                  .dtype = plan.problem.dtype,
                  .tile = tile_of(plan),
                  .tile_sums = held.tile_sums(),
                  .live_heads = held.live_heads(),
                  .empty_rows = held.empty_rows(),
                  .ordered = plan.level != Level::not_guaranteed,
                  .shown_by_blocks = held.shown_by_blocks(),
                  .heads_in_pairs = held.heads_in_pairs(),
                  .record = record});
}

template void run_plan(const Device&, const Kernel&,
                       const std::function<void(const ForwardParams&, const LaunchContext&)>&,
                       const Plan&, const DevicePlan&, const RunOptions&, int64_t, ForwardParams,
                       const RecordView&);
template void run_plan(const Device&, const Kernel&,
                       const std::function<void(const BackwardParams&, const LaunchContext&)>&,
                       const Plan&, const DevicePlan&, const RunOptions&, int64_t, BackwardParams,
                       const RecordView&);

int64_t launch_bytes(const Kernel& kernel, const Plan& plan) {
  const auto [q_tiles, kv_tiles] = extent_of(plan);
  return Layout(plan.problem, q_tiles, kv_tiles,
                kernel.workspace_bytes(plan.problem,
                                       {q_tiles, kv_tiles, tile_sums(plan), live_heads(plan)}))
      .end;
}

}  // namespace verbatim::cuda
