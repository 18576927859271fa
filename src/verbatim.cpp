#include "verbatim/verbatim.h"

#include <utility>

#include "backend/backend.h"

namespace verbatim {

struct Attention::Impl {
  Problem problem;
  Mask mask;
  std::unique_ptr<Backend> backend;
  PlanOptions forward_options, backward_options;
  std::shared_ptr<const Plan> forward, backward;
  bool has_backward;
  int64_t forward_workspace, backward_workspace;  // that callers may bring

  /// The plan of a pass, with its orders cut where `run` has fewer workers than they wait for.
  std::shared_ptr<const Plan> plan_for(Pass pass, const RunOptions& run) {
    const auto& whole = pass == Pass::forward ? forward : backward;
    if (whole->residency <= 1) return whole;
    const int32_t available = backend->available(run);
    if (whole->residency <= available) return whole;
    PlanOptions options = pass == Pass::forward ? forward_options : backward_options;
    options.workers = 0;  // which would stand for the workers that there are
    options.residents = available;
    return cached_plan(problem, mask, options);
  }
};

namespace {

/// Whether `backend` runs a backward. Throws Error, unless nobody can have expected one.
bool runs(const Backend& backend, const Plan& backward) {
  try {
    backend.check_plan(backward);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported || !backend.forward_alone()) throw;
    return false;
  }
  return true;
}

}  // namespace

Attention::Attention(const Problem& problem, Mask mask, const AttentionOptions& options) {
  problem.validate();
  std::unique_ptr<Backend> backend =
      make_backend(options.device, options.kernels, options.plan.level);
  backend->check(problem);
  backend->check_mask(mask);
  PlanOptions backward_options = options.plan;
  if (backward_options.machine.name.empty()) {
    backward_options.machine = make_machine(backend->machine());
  }
  if (backward_options.residents == 0) backward_options.residents = backend->residents();
  backward_options.pass = Pass::backward;
  PlanOptions forward_options = backward_options;
  forward_options.pass = Pass::forward;
  for (PlanOptions* each : {&forward_options, &backward_options}) complete(*each, *backend);
  forward_options.order = options.forward_order;
  auto backward = cached_plan(problem, mask, backward_options);
  auto forward = cached_plan(problem, mask, forward_options);
  const bool has_backward = problem.has_backward() && runs(*backend, *backward);
  backend->check_plan(*forward);
  const int64_t forward_workspace = backend->callers_workspace_bytes(*forward);
  const int64_t backward_workspace = has_backward ? backend->callers_workspace_bytes(*backward) : 0;
  impl_.reset(new Impl{.problem = problem,
                       .mask = std::move(mask),
                       .backend = std::move(backend),
                       .forward_options = std::move(forward_options),
                       .backward_options = std::move(backward_options),
                       .forward = std::move(forward),
                       .backward = std::move(backward),
                       .has_backward = has_backward,
                       .forward_workspace = forward_workspace,
                       .backward_workspace = backward_workspace});
}

Attention::~Attention() = default;
Attention::Attention(Attention&&) noexcept = default;
Attention& Attention::operator=(Attention&&) noexcept = default;

void Attention::forward(const ForwardTensors& tensors, const RunOptions& run) const {
  check_tensors(impl_->problem, tensors);
  impl_->backend->forward(impl_->plan_for(Pass::forward, run), tensors, run);
}

void Attention::backward(const BackwardTensors& tensors, const RunOptions& run) const {
  check_tensors(impl_->problem, tensors);
  impl_->backend->backward(impl_->plan_for(Pass::backward, run), tensors, run);
}

const Problem& Attention::problem() const { return impl_->problem; }
bool Attention::has_backward() const { return impl_->has_backward; }
const Mask& Attention::mask() const { return impl_->mask; }
const Plan& Attention::plan(Pass pass) const {
  return pass == Pass::forward ? *impl_->forward : *impl_->backward;
}
int64_t Attention::workspace_bytes(Pass pass) const {
  return impl_->backend->workspace_bytes(plan(pass));
}
int64_t Attention::workspace_bytes(Pass pass, const RunOptions& run) const {
  const auto plan = impl_->plan_for(pass, run);
  if (plan == impl_->forward) return impl_->forward_workspace;
  if (plan == impl_->backward) return impl_->backward_workspace;
  return impl_->backend->callers_workspace_bytes(*plan);
}
std::string Attention::kernel(Pass pass) const { return impl_->backend->kernel_name(plan(pass)); }

void check(std::string_view device) { make_backend(device)->check_waits(); }

}  // namespace verbatim
