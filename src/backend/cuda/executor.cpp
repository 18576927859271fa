#include "backend/cuda/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "backend/cuda/arguments.h"
#include "backend/cuda/device_plan.h"
#include "backend/cuda/driver.h"
#include "backend/cuda/recording.h"
#include "backend/cuda/report.h"
#include "backend/cuda/run_plan.h"
#include "backend/cuda/staging.h"
#include "contract/contract.h"

namespace verbatim::cuda {
namespace {

/// A whole plan on the device, for what `stream` is given from now on.
std::shared_ptr<const DevicePlan> uploaded(const Device& device,
                                           const std::shared_ptr<const Plan>& plan,
                                           cudaStream_t stream) {
  const cudaGraph_t graph = graph_of(stream);
  auto held = device_plan(device, plan);
  if (graph) keep_with(graph, held);
  held->upload().before_launch(stream, graph);
  return held;
}

}  // namespace

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

}  // namespace verbatim::cuda

namespace verbatim {

std::unique_ptr<Backend> make_cuda_backend(int index, const std::vector<std::string>& libraries) {
  return std::make_unique<cuda::CudaBackend>(index, libraries);
}

}  // namespace verbatim
