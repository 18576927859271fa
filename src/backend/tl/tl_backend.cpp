#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "backend/tl/interpreter.h"
#include "contract/contract.h"

namespace verbatim {
namespace {

/// A program and what plans that it runs are called.
struct Program {
  tl::Kernel kernel;
  std::string arithmetic;
};

Program checked(const std::string& text, Level level) {
  const tl::Examined found =
      tl::examine_code(text, "kernel", {.target = {}, .level = level}, "tl.kernel");
  tl::refuse_index(found.kernel, "tl.kernel");
  return {found.kernel, contract::kInterpretedTl + tl::hash_of(found.program)};
}

class TlBackend final : public Backend {
 public:
  TlBackend(const std::vector<std::string>& programs, Level level) : cpu_(make_cpu_backend()) {
    for (const std::string& text : programs) {
      Program program = checked(text, level);
      const Pass pass = program.kernel.pass;
      if (program_of(pass)) refuse_second_kernel(pass, "tl.kernel");
      programs_.push_back(std::move(program));
    }
  }

  std::string_view name() const override { return cpu_->name(); }
  std::string_view arithmetic() const override { return cpu_->arithmetic(); }
  std::string arithmetic_of(Pass pass) const override {
    const Program* program = program_of(pass);
    return program ? program->arithmetic : cpu_->arithmetic_of(pass);
  }
  TileShape own_tile(Pass pass) const override {
    const Program* program = program_of(pass);
    return program ? program->kernel.tile : TileShape{0, 0};
  }
  int32_t residents() const override { return cpu_->residents(); }
  std::string machine() const override { return cpu_->machine(); }

  void check(const Problem& p) const override {
    p.validate();
    if (p.has_backward() || !program_of(Pass::forward)) cpu_->check(p);
    for (const Program& program : programs_) tl::check_problem(program.kernel, p);
  }

  void check_mask(const Mask& mask) const override {
    for (const Program& program : programs_) tl::check_mask(program.kernel, mask);
  }

  void check_plan(const Plan& plan) const override {
    const Program* program = program_of(plan.pass);
    if (!program) return cpu_->check_plan(plan);
    if (plan.arithmetic != program->arithmetic)
      refuse_arithmetic(plan, program->arithmetic, "tl.kernel");
    for (const auto& order : plan.orders) tl::check_tile(program->kernel, order->tiles->shape);
    check_whole_rows(plan, "tl.kernel");
  }

  int64_t workspace_bytes(const Plan& plan) const override {
    const Program* program = program_of(plan.pass);
    return program ? tl::workspace_bytes(program->kernel, plan) : cpu_->workspace_bytes(plan);
  }
  std::string kernel_name(const Plan& plan) const override {
    const Program* program = program_of(plan.pass);
    return program ? "tl." + program->kernel.target : cpu_->kernel_name(plan);
  }

  void forward(const std::shared_ptr<const Plan>& plan, const ForwardTensors& tensors,
               const RunOptions& run) const override {
    const Program* program = program_of(Pass::forward);
    if (!program) return cpu_->forward(plan, tensors, run);
    check_plan(*plan);
    check_tensors(plan->problem, tensors);
    tl::run_forward(program->kernel, *plan, tensors, run);
  }

  void backward(const std::shared_ptr<const Plan>& plan, const BackwardTensors& tensors,
                const RunOptions& run) const override {
    const Program* program = program_of(Pass::backward);
    if (!program) return cpu_->backward(plan, tensors, run);
    check_plan(*plan);
    check_tensors(plan->problem, tensors);
    tl::run_backward(program->kernel, *plan, tensors, run);
  }

 private:
  const Program* program_of(Pass pass) const {
    const auto found = std::ranges::find_if(
        programs_, [&](const Program& program) { return program.kernel.pass == pass; });
    return found == programs_.end() ? nullptr : &*found;
  }

  std::unique_ptr<Backend> cpu_;  // of the pass that has no program
  std::vector<Program> programs_;
};

}  // namespace

std::unique_ptr<Backend> make_tl_backend(const std::vector<std::string>& programs, Level level) {
  return std::make_unique<TlBackend>(programs, level);
}

}  // namespace verbatim
