#include <algorithm>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/passes.h"
#include "backend/cpu/workspace.h"
#include "backend/executor.h"
#include "contract/contract.h"

namespace verbatim {
namespace {

struct CpuPiece final : ReadyLaunch {
  CpuPiece(Piece p, Plan alone) : piece(std::move(p)), plan(std::move(alone)) {}
  Piece piece;
  Plan plan;
};

struct CpuSums final : ReadyLaunch {
  CpuSums(const Plan& plan, std::span<const TileSums> sums)
      : whole(plan), tiles(sums.begin(), sums.end()) {}
  const Plan& whole;
  std::vector<TileSums> tiles;
};

class CpuBackend final : public Backend {
 public:
  std::string_view name() const override { return "cpu"; }
  std::string_view arithmetic() const override { return "cpu"; }

  void check(const Problem& problem) const override {
    problem.validate();
    if (problem.dtype == Dtype::e4m3)
      throw Error(ErrorCode::unsupported, "cpu", "the CPU's own kernels do not take this dtype",
                  {"dtype", "e4m3", "f32, bf16 or f16, or a TL program of e4m3", "bf16"});
  }
  void check_plan(const Plan& plan) const override {
    if (plan.arithmetic != contract::kCpu) refuse_arithmetic(plan, contract::kCpu, "cpu");
  }

  /// A worker that waits is parked.
  int32_t residents() const override { return 0; }
  std::string machine() const override { return "cpu"; }

  int64_t workspace_bytes(const Plan& plan) const override {
    return plan.pass == Pass::forward ? cpu::forward_workspace_bytes(plan)
                                      : cpu::backward_workspace_bytes(plan);
  }

  std::string kernel_name(const Plan&) const override {
    return std::string("cpu.") + cpu::kernels().name;
  }

  void forward(const std::shared_ptr<const Plan>& plan, const ForwardTensors& tensors,
               const RunOptions& run) const override {
    require(*plan, Pass::forward, "cpu.forward");
    check_tensors(plan->problem, tensors);
    cpu::run_forward(*plan, tensors, sized(*plan, run), cpu::kernels());
  }

  void backward(const std::shared_ptr<const Plan>& plan, const BackwardTensors& tensors,
                const RunOptions& run) const override {
    require(*plan, Pass::backward, "cpu.backward");
    check_tensors(plan->problem, tensors);
    cpu::run_backward(*plan, tensors, sized(*plan, run), cpu::kernels());
  }

  std::unique_ptr<const ReadyLaunch> ready_piece(const Plan& whole, const Piece& piece,
                                                 const PieceMemory&, int64_t,
                                                 const RunOptions&) const override {
    return std::make_unique<CpuPiece>(piece, plan_of(whole, piece));
  }

  void forward_piece(const ReadyLaunch& ready, const ForwardTensors& tensors,
                     const PieceMemory& memory, const RunOptions& run) const override {
    const auto& own = static_cast<const CpuPiece&>(ready);
    require(own.plan, Pass::forward, "cpu.forward_piece");
    const cpu::PieceCall call{own.piece, memory};
    cpu::run_forward(own.plan, tensors, run, cpu::kernels(), &call);
  }

  void backward_piece(const ReadyLaunch& ready, const BackwardTensors& tensors,
                      const PieceMemory& memory, const RunOptions& run) const override {
    const auto& own = static_cast<const CpuPiece&>(ready);
    require(own.plan, Pass::backward, "cpu.backward_piece");
    const cpu::PieceCall call{own.piece, memory};
    cpu::run_backward(own.plan, tensors, run, cpu::kernels(), &call);
  }

  std::unique_ptr<const ReadyLaunch> ready_sums(const Plan& whole, std::span<const TileSums> tiles,
                                                const PieceMemory&,
                                                const RunOptions&) const override {
    return std::make_unique<CpuSums>(whole, tiles);
  }

  void add(const ReadyLaunch& ready, const BackwardTensors& tensors, const PieceMemory& memory,
           const RunOptions&) const override {
    const auto& own = static_cast<const CpuSums&>(ready);
    for (const TileSums& sums : own.tiles)
      cpu::add_tile_sums(own.whole, sums, tensors, memory, cpu::kernels());
  }

  int64_t dq_sum_floats(const Plan& whole, const HeldRows& q_rows, int64_t q_heads) const override {
    if (whole.problem.dtype == Dtype::f32) return 0;  // they lie in dq
    return q_rows.size() * q_heads * whole.problem.head_dim;
  }

 private:
  static RunOptions sized(const Plan& plan, RunOptions run) {
    run.threads = cpu::worthwhile_threads(plan, run);
    return run;
  }

  static void require(const Plan& plan, Pass pass, const char* operation) {
    if (plan.arithmetic != contract::kCpu) refuse_arithmetic(plan, contract::kCpu, operation);
    if (plan.pass == pass) return;
    throw Error(ErrorCode::invalid_argument, operation, "the plan is for the other pass",
                {"plan.pass", std::string(to_string(plan.pass)), std::string(to_string(pass)), ""});
  }
};

}  // namespace

namespace cpu {

int worthwhile_threads(const Plan& plan, const RunOptions& run) {
  // About 100 microseconds of a core; a score costs as much besides its products as 80 of them.
  constexpr int64_t kProductsPerThread = 10'000'000, kProductsPerScore = 80;
  std::vector<int64_t> visits;
  for (const auto& order : plan.orders) visits.push_back(order->visits());
  int64_t all_visits = 0;
  for (const int32_t order : plan.order_of_head) all_visits += visits[order];
  const TileLimits tile(plan);
  const int64_t dims = plan.problem.head_dim + plan.problem.head_dim_v;
  const int64_t products = (plan.pass == Pass::forward ? dims : 5 * dims / 2) + kProductsPerScore;
  const int64_t paid = all_visits * tile.q * tile.kv * products / kProductsPerThread;
  return static_cast<int>(std::clamp<int64_t>(paid, 1, thread_count(plan, run)));
}

}  // namespace cpu

std::unique_ptr<Backend> make_cpu_backend() { return std::make_unique<CpuBackend>(); }

}  // namespace verbatim
