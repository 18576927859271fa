#include <algorithm>
#include <thread>

#include "backend/backend.h"
#include "backend/cpu/executor.h"
#include "backend/cpu/passes.h"
#include "contract/contract.h"

namespace verbatim {
namespace {

class CpuBackend final : public Backend {
 public:
  std::string_view name() const override { return "cpu"; }
  std::string_view arithmetic() const override { return "cpu"; }

  void check(const Problem& problem) const override { problem.validate(); }
  void check_plan(const Plan& plan) const override {
    if (plan.arithmetic != contract::kCpu) refuse_arithmetic(plan, contract::kCpu, "cpu");
  }

  /// A worker that waits is parked, so any number would do; but its tiles leave the caches.
  int32_t residents() const override {
    return std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
  }

  int64_t workspace_bytes(const Plan& plan) const override {
    return plan.pass == Pass::forward ? cpu::forward_workspace_bytes(plan)
                                      : cpu::backward_workspace_bytes(plan);
  }

  std::string kernel_name(const Plan&) const override {
    return std::string("cpu.") + cpu::kernels().name;
  }

  void forward(const Plan& plan, const ForwardTensors& tensors,
               const RunOptions& run) const override {
    require(plan, Pass::forward, "cpu.forward");
    check_tensors(plan.problem, tensors);
    cpu::run_forward(plan, tensors, sized(plan, run), cpu::kernels());
  }

  void backward(const Plan& plan, const BackwardTensors& tensors,
                const RunOptions& run) const override {
    require(plan, Pass::backward, "cpu.backward");
    check_tensors(plan.problem, tensors);
    cpu::run_backward(plan, tensors, sized(plan, run), cpu::kernels());
  }

  void forward_piece(const Plan& whole, const Piece& piece, const ForwardTensors& tensors,
                     const PieceMemory& memory, const RunOptions& run) const override {
    require(whole, Pass::forward, "cpu.forward_piece");
    const cpu::PieceCall call{piece, memory};
    cpu::run_forward(plan_of(whole, piece), tensors, run, cpu::kernels(), &call);
  }

  void backward_piece(const Plan& whole, const Piece& piece, const BackwardTensors& tensors,
                      const PieceMemory& memory, const RunOptions& run) const override {
    require(whole, Pass::backward, "cpu.backward_piece");
    const cpu::PieceCall call{piece, memory};
    cpu::run_backward(plan_of(whole, piece), tensors, run, cpu::kernels(), &call);
  }

  void add(const Plan& whole, const TileSums& sums, const BackwardTensors& tensors,
           const PieceMemory& memory) const override {
    cpu::add_tile_sums(whole, sums, tensors, memory, cpu::kernels());
  }

 private:
  static RunOptions sized(const Plan& plan, RunOptions run) {
    run.threads = cpu::worthwhile_threads(plan, run);
    return run;
  }

  static void require(const Plan& plan, Pass pass, const char* operation) {
    if (plan.arithmetic != contract::kCpu) refuse_arithmetic(plan, contract::kCpu, operation);
    if (plan.pass == pass) return;
    const auto word = [](Pass p) { return p == Pass::forward ? "forward" : "backward"; };
    throw Error(
        ErrorCode::invalid_argument, operation, "the plan is for the other pass",
        {.argument = "plan.pass", .got = word(plan.pass), .expected = word(pass), .nearest = ""});
  }
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend() { return std::make_unique<CpuBackend>(); }

}  // namespace verbatim
