#include "verbatim/verbatim.h"

#include <utility>

#include "backend/backend.h"

namespace verbatim {

struct Attention::Impl {
  Problem problem;
  Mask mask;
  std::unique_ptr<Backend> backend;
  std::shared_ptr<const Plan> forward, backward;
};

Attention::Attention(const Problem& problem, Mask mask, const AttentionOptions& options) {
  problem.validate();
  std::unique_ptr<Backend> backend = make_backend(options.device);
  backend->check(problem);
  PlanOptions plan = options.plan;
  if (plan.machine.name.empty()) {
    plan.machine = make_machine(backend->name() == "cpu" ? "cpu" : "h200");
  }
  if (plan.residents == 0) plan.residents = backend->residents();
  if (plan.arithmetic.empty()) plan.arithmetic = backend->arithmetic();
  plan.pass = Pass::backward;
  const auto backward = cached_plan(problem, mask, plan);
  plan.pass = Pass::forward;
  plan.order = options.forward_order;
  const auto forward = cached_plan(problem, mask, plan);
  impl_ =
      std::make_unique<Impl>(Impl{problem, std::move(mask), std::move(backend), forward, backward});
}

Attention::~Attention() = default;
Attention::Attention(Attention&&) noexcept = default;
Attention& Attention::operator=(Attention&&) noexcept = default;

void Attention::forward(const ForwardTensors& tensors, const RunOptions& run) const {
  check_tensors(impl_->problem, tensors);
  impl_->backend->forward(*impl_->forward, tensors, run);
}

void Attention::backward(const BackwardTensors& tensors, const RunOptions& run) const {
  check_tensors(impl_->problem, tensors);
  impl_->backend->backward(*impl_->backward, tensors, run);
}

const Problem& Attention::problem() const { return impl_->problem; }
const Mask& Attention::mask() const { return impl_->mask; }
const Plan& Attention::plan(Pass pass) const {
  return pass == Pass::forward ? *impl_->forward : *impl_->backward;
}
int64_t Attention::workspace_bytes(Pass pass) const {
  return impl_->backend->workspace_bytes(plan(pass));
}
std::string Attention::kernel(Pass pass) const { return impl_->backend->kernel_name(plan(pass)); }

}  // namespace verbatim
