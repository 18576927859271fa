#include "backend/cuda/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "backend/cuda/add_sums.h"
#include "backend/cuda/arguments.h"
#include "backend/cuda/device_plan.h"
#include "backend/cuda/driver.h"
#include "backend/cuda/in_flight.h"
#include "backend/cuda/recording.h"
#include "backend/cuda/report.h"
#include "backend/cuda/staging.h"
#include "contract/contract.h"
#include "plan/live_heads.h"

namespace verbatim::cuda {
namespace {

/// The tile shape of a plan's orders, which is one.
TileShape tile_of(const Plan& plan) {
  return plan.orders.empty() ? TileShape{} : plan.orders.front()->tiles->shape;
}

bool shares_tiles(const Plan& plan) {
  for (const auto& order : plan.orders) {
    for (const Chain& chain : order->chains) {
      if (chain.addends > 1) return true;
    }
  }
  return false;
}

/// Most query and KV tiles of any order.
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
      plan_.in_use_until(end);
      if (turnstile_) turnstile_->passed(end);
    } catch (const std::exception&) {
      plan_.keep();
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

/// A whole plan on the device, for what `stream` is given from now on.
std::shared_ptr<const DevicePlan> uploaded(const Device& device,
                                           const std::shared_ptr<const Plan>& plan,
                                           cudaStream_t stream) {
  const cudaGraph_t graph = graph_of(stream);
  auto held = device_plan(device, plan);
  if (graph) keep_with(graph, held);
  held->before_launch(stream, graph);
  return held;
}

/// What both passes do: fill in the plan and the memory, and launch. `held` is the plan on the
/// device.
template <class Params>
void run_plan(const Device& device, const Kernel& kernel,
              const std::function<void(const Params&, const LaunchContext&)>& launch,
              const Plan& plan, const DevicePlan& held, const RunOptions& run,
              int64_t spin_limit_ns, Params params, const RecordView& record = {}) {
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
                  .shared_tiles = held.shared_tiles(),
                  .live_heads = held.live_heads(),
                  .empty_rows = held.empty_rows(),
                  .ordered = plan.level != Level::not_guaranteed,
                  .record = record});
}

}  // namespace

int64_t launch_bytes(const Kernel& kernel, const Plan& plan) {
  const auto [q_tiles, kv_tiles] = extent_of(plan);
  return Layout(plan.problem, q_tiles, kv_tiles,
                kernel.workspace_bytes(plan.problem,
                                       {q_tiles, kv_tiles, shares_tiles(plan), live_heads(plan)}))
      .end;
}

CudaBackend::CudaBackend(int index, const std::vector<std::string>& libraries)
    : device_(device(index)) {
  for (const std::string& path : libraries) {
    LoadedKernel one = load_kernel(path);
    if (loaded(one.kernel.pass)) refuse_second_kernel(one.kernel.pass, "cuda.kernel");
    loaded_.push_back(std::move(one));
  }
}

const LoadedKernel* CudaBackend::loaded(Pass pass) const {
  const auto found = std::ranges::find(loaded_, pass, [](const auto& l) { return l.kernel.pass; });
  return found == loaded_.end() ? nullptr : &*found;
}

std::string CudaBackend::arithmetic_of(Pass pass) const {
  const LoadedKernel* own = loaded(pass);
  return own ? own->kernel.arithmetic : std::string(arithmetic());
}

TileShape CudaBackend::own_tile(Pass pass) const {
  const LoadedKernel* own = loaded(pass);
  return own ? own->library->tile : TileShape{0, 0};
}

void CudaBackend::check_mask(const Mask& mask) const {
  for (const LoadedKernel& own : loaded_) {
    const std::string only = own.library->mask;
    if (!only.empty() && mask.name() != only)
      throw Error(ErrorCode::unsupported, "cuda.kernel", "the program is for another mask",
                  {"mask", mask.name(), only, only});
  }
}

std::string_view CudaBackend::arithmetic() const {
  return device_.arch / 10 == 9 ? "sm90" : "sm80";  // wgmma is of 9.0 alone
}

const Kernel& CudaBackend::kernel(Pass pass, const std::string& arithmetic, const Problem& problem,
                                  const TileShape& tile) const {
  const LoadedKernel* own = loaded(pass);
  const auto row = std::ranges::find_if(kernels(), [&](const Kernel& kernel) {
    return kernel.pass == pass && kernel.arithmetic == arithmetic;
  });
  const Kernel* found = own ? &own->kernel : row != kernels().end() ? &*row : nullptr;
  if (!found) refuse_kernel(device_, arithmetic, problem, tile, "arithmetic sm80 or sm90");
  if (arithmetic != found->arithmetic)
    refuse_kernel(device_, arithmetic, problem, tile,
                  "arithmetic " + std::string(found->arithmetic));
  check_kernel(*found, device_, problem, tile);
  return *found;
}

const Kernel& CudaBackend::kernel(const Plan& plan) const {
  return kernel(plan.pass, plan.arithmetic, plan.problem, tile_of(plan));
}

void CudaBackend::check(const Problem& problem) const {
  const TileShape smallest{64, 64}, largest{192, 128};
  // The portable kernels take what those of Hopper take.
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    const LoadedKernel* own = loaded(pass);
    if (pass == Pass::backward && (!problem.has_backward() || forward_alone())) continue;
    kernel(pass, own ? own->kernel.arithmetic : contract::kSm80, problem,
           own ? own->library->tile : smallest);
  }
  const auto tiles = [](int64_t length, int64_t tile) { return (length + tile - 1) / tile; };
  check_limits({}, problem,  // of a plan: check_plan()
               {tiles(problem.q_len, largest.q), tiles(problem.kv_len, largest.kv), 0});
}

void CudaBackend::check_plan(const Plan& plan) const {
  check_limits(kernel(plan).limits, plan.problem, counts_of(plan));
  if (loaded(plan.pass)) check_whole_rows(plan, "cuda.kernel");
}

std::string CudaBackend::machine() const {
  return fmt::format("h200:{}", device_.multiprocessors);  // the one GPU that was calibrated
}

int32_t CudaBackend::available(const RunOptions& run) const {
  const DeviceGuard guard(device_.index);
  return multiprocessors_of(device_, static_cast<cudaStream_t>(run.stream));
}

void CudaBackend::check_waits() const { check_report(*device_.report); }

int64_t CudaBackend::wait_limit_ns(const RunOptions& run) const {
  constexpr double kLongest = 1e9;
  if (run.wait_limit == 0) return wait_limit_ns_;
  if (run.wait_limit > 0 && run.wait_limit <= kLongest) {
    return static_cast<int64_t>(run.wait_limit * 1e9);
  }
  throw Error(ErrorCode::invalid_argument, "cuda", "wait_limit is no time that a wait can take",
              {"wait_limit", fmt::format("{} seconds", run.wait_limit),
               "more than 0 and at most 1e9 seconds, or 0 for the usual 10", "10"});
}

int64_t CudaBackend::workspace_bytes(const Plan& plan) const {
  return launch_bytes(kernel(plan), plan);
}

std::string CudaBackend::kernel_name(const Plan& plan) const { return kernel(plan).name; }

void CudaBackend::forward(const std::shared_ptr<const Plan>& shared, const ForwardTensors& tensors,
                          const RunOptions& run) const {
  const Plan& plan = *shared;
  check_tensors(plan.problem, tensors);
  const Kernel& chosen = kernel(plan);
  check_limits(chosen.limits, plan.problem, counts_of(plan));
  const int64_t wait_limit = wait_limit_ns(run);
  check_waits();
  const DeviceGuard guard(device_.index);
  Staging staging(device_, static_cast<cudaStream_t>(run.stream));
  ForwardParams params;
  params.q = ref("q", staging.input(tensors.q));
  params.k = ref("k", staging.input(tensors.k));
  params.v = ref("v", staging.input(tensors.v));
  params.o = ref("o", staging.output(tensors.o));
  params.lse = staging.output(tensors.lse).data;
  const auto held = uploaded(device_, shared, static_cast<cudaStream_t>(run.stream));
  run_plan(device_, chosen, chosen.forward, plan, *held, run, wait_limit, params);
  if (staging.finish()) check_waits();
}

void CudaBackend::backward(const std::shared_ptr<const Plan>& shared,
                           const BackwardTensors& tensors, const RunOptions& run) const {
  const Plan& plan = *shared;
  check_tensors(plan.problem, tensors);
  const Kernel& chosen = kernel(plan);
  check_limits(chosen.limits, plan.problem, counts_of(plan));
  const int64_t wait_limit = wait_limit_ns(run);
  check_waits();
  const DeviceGuard guard(device_.index);
  Staging staging(device_, static_cast<cudaStream_t>(run.stream));
  BackwardParams params;
  params.q = ref("q", staging.input(tensors.q));
  params.k = ref("k", staging.input(tensors.k));
  params.v = ref("v", staging.input(tensors.v));
  params.o = ref("o", staging.input(tensors.o));
  params.dout = ref("dout", staging.input(tensors.dout));
  params.lse = staging.input(tensors.lse).data;
  params.dq = ref("dq", staging.output(tensors.dq));
  params.dk = ref("dk", staging.output(tensors.dk));
  params.dv = ref("dv", staging.output(tensors.dv));
  std::optional<Recording> recording;
  if (run.timeline && chosen.records && chosen.records(plan.problem)) {
    recording.emplace(device_, plan, static_cast<cudaStream_t>(run.stream));
  }
  const auto held = uploaded(device_, shared, static_cast<cudaStream_t>(run.stream));
  run_plan(device_, chosen, chosen.backward, plan, *held, run, wait_limit, params,
           recording ? recording->view() : RecordView{});
  if (recording) {
    const auto [q_tiles, kv_tiles] = extent_of(plan);
    recording->collect(plan, q_tiles, kv_tiles, *run.timeline);
  }
  if (staging.finish()) check_waits();
}

template <class Params>
double CudaBackend::run_piece(
    const Kernel& kernel, const std::function<void(const Params&, const LaunchContext&)>& launch,
    const LocalPiece& piece, const RunOptions& run, const Params& params) const {
  const auto stream = static_cast<cudaStream_t>(run.stream);
  const int64_t wait_limit = wait_limit_ns(run);
  check_limits(kernel.limits, piece.plan.problem, counts_of(piece.plan));
  check_waits();
  const DevicePlan held(device_, piece);
  held.before_launch(stream, nullptr);
  const Stopwatch watch(stream);
  run_plan(device_, kernel, launch, piece.plan, held, run, wait_limit, params);
  const double seconds = watch.seconds();
  check_waits();
  return seconds;
}

double CudaBackend::forward_piece(const Plan& whole, const Piece& piece,
                                  const ForwardTensors& tensors, const PieceMemory& memory,
                                  const RunOptions& run) const {
  const LocalPiece local(whole, piece, memory, tensors.q.shape[2]);
  const Kernel& chosen = kernel(local.plan);
  const DeviceGuard guard(device_.index);
  ForwardParams params;
  params.q = ref("q", local.q_side(tensors.q));
  params.k = ref("k", local.kv_side(tensors.k));
  params.v = ref("v", local.kv_side(tensors.v));
  params.o = ref("o", local.q_side(tensors.o));
  params.lse = local.q_side(tensors.lse).data;
  return run_piece(chosen, chosen.forward, local, run, params);
}

double CudaBackend::backward_piece(const Plan& whole, const Piece& piece,
                                   const BackwardTensors& tensors, const PieceMemory& memory,
                                   const RunOptions& run) const {
  const LocalPiece local(whole, piece, memory, tensors.q.shape[2]);
  const Kernel& chosen = kernel(local.plan);
  const DeviceGuard guard(device_.index);
  BackwardParams params;
  params.q = ref("q", local.q_side(tensors.q));
  params.k = ref("k", local.kv_side(tensors.k));
  params.v = ref("v", local.kv_side(tensors.v));
  params.o = ref("o", local.q_side(tensors.o));
  params.dout = ref("dout", local.q_side(tensors.dout));
  params.lse = local.q_side(tensors.lse).data;
  params.dq = ref("dq", local.q_side(tensors.dq));
  params.dk = ref("dk", local.kv_side(tensors.dk));
  params.dv = ref("dv", local.kv_side(tensors.dv));
  const auto q_tiles = static_cast<int32_t>(local.q_rows.size());
  params.carried = {
      memory.dq_sums + local.q_head_at * chosen.dq_sum_floats(local.plan.problem, q_tiles),
      memory.blocks, memory.block_floats};
  return run_piece(chosen, chosen.backward, local, run, params);
}

double CudaBackend::add(const Plan& whole, std::span<const TileSums> tiles,
                        const BackwardTensors& tensors, const PieceMemory& memory,
                        const RunOptions& run) const {
  const Problem& problem = whole.problem;
  const Kernel& chosen = kernel(whole);
  const auto stream = static_cast<cudaStream_t>(run.stream);
  const DeviceGuard guard(device_.index);
  const Scalars scalars = scalars_of(problem, run);
  const TensorRef dk = ref("dk", tensors.dk), dv = ref("dv", tensors.dv);
  const Stopwatch watch(stream);
  for (const TileSums& sums : tiles) {
    const auto edge = whole.order(sums.head).tiles->kv_edges.begin() + sums.kv_tile;
    const int64_t row = memory.kv_rows.at(sums.head / problem.kv_heads, edge[0]);
    const int64_t head = sums.head % problem.kv_heads - memory.first_kv_head;
    add_tile_sums({.dtype = problem.dtype,
                   .blocks = {nullptr, memory.blocks, memory.block_floats},
                   .rows = static_cast<int32_t>(edge[1] - edge[0]),
                   .outputs = {{dk.at<uint16_t>(0, row, head), dk.row,
                                static_cast<int32_t>(problem.head_dim), scalars.scale},
                               {dv.at<uint16_t>(0, row, head), dv.row,
                                static_cast<int32_t>(problem.head_dim_v),
                                chosen.scales_dv ? scalars.dropout.scale : 1}}},
                  sums.blocks, stream);
  }
  return watch.seconds();
}

int64_t CudaBackend::dq_sum_floats(const Plan& whole, const HeldRows& q_rows,
                                   int64_t q_heads) const {
  Problem local = whole.problem;
  local.q_len = q_rows.size();
  return q_heads *
         kernel(whole).dq_sum_floats(local, local_q_tiles(whole, q_rows, whole.problem.batch));
}

}  // namespace verbatim::cuda

namespace verbatim {

std::unique_ptr<Backend> make_cuda_backend(int index, const std::vector<std::string>& libraries) {
  return std::make_unique<cuda::CudaBackend>(index, libraries);
}

}  // namespace verbatim
