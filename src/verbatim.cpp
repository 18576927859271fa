#include "verbatim/verbatim.h"

#include <fmt/format.h>

#include <atomic>
#include <mutex>
#include <utility>

#include "backend/backend.h"
#include "plan/accept.h"

namespace verbatim {

struct Attention::Impl {
  /// A pass, planned when first asked for. Safe to ask from several threads.
  struct Planned {
    PlanOptions options;
    std::shared_ptr<const Plan> given;  // the caller's, in place of that by these options
    std::mutex mutex;
    std::shared_ptr<const Plan> plan;
    int64_t workspace = 0;  // that callers may bring
    std::atomic<int64_t> bytes = 0;
  };

  Problem problem;
  Mask mask;
  std::unique_ptr<Backend> backend;
  Planned forward, backward;
  bool has_backward;

  Impl(const Problem& of_problem, Mask under, std::unique_ptr<Backend> on)
      : problem(of_problem),
        mask(std::move(under)),
        backend(std::move(on)),
        has_backward(problem.has_backward()) {}

  Planned& of(Pass pass) { return pass == Pass::forward ? forward : backward; }

  /// Throws Error(unsupported) where the backend cannot run it.
  const Planned& planned(Pass pass) {
    Planned& own = of(pass);
    const std::lock_guard lock(own.mutex);
    if (own.plan) return own;
    auto plan = own.given ? own.given : cached_plan(problem, mask, own.options);
    if (pass == Pass::forward || has_backward) {
      backend->check_plan(*plan);
      own.workspace = backend->callers_workspace_bytes(*plan);
    }
    own.bytes = plan->bytes() + plan->tile_bytes();
    own.plan = std::move(plan);
    return own;
  }

  /// The plan of a pass, with its orders cut where `run` has fewer workers than they wait for.
  std::shared_ptr<const Plan> plan_for(Pass pass, const RunOptions& run) {
    const auto& whole = planned(pass).plan;
    if (whole->residency <= 1) return whole;
    const int32_t available = backend->available(run);
    if (whole->residency <= available) return whole;
    if (of(pass).given)
      throw Error(ErrorCode::unsupported, "attention", "too few workers for the waits of the plan",
                  {"plans", fmt::format("{} workers", available),
                   fmt::format("{} or more, which run at once", whole->residency), ""});
    PlanOptions options = of(pass).options;
    options.workers = 0;  // which would stand for the workers that there are
    options.residents = available;
    return cached_plan(problem, mask, options);
  }

  /// A plan of the caller's, which runs in place of that by rule.
  void take(const std::shared_ptr<const Plan>& plan) {
    if (!plan)
      throw Error(ErrorCode::invalid_argument, "attention", "there is no plan",
                  {"plans", "null", "a plan", ""});
    Planned& own = of(plan->pass);
    const std::string pass(to_string(plan->pass));
    if (own.given)
      throw Error(ErrorCode::invalid_argument, "attention", "a pass has one plan",
                  {"plans", "two of the " + pass, "at most one a pass", ""});
    if (own.options.order != "auto")
      throw Error(ErrorCode::invalid_argument, "attention", "the plan has an order of its own",
                  {plan->pass == Pass::forward ? "forward_order" : "order", own.options.order,
                   fmt::format("auto, where the {} has a plan", pass), "auto"});
    own.given = std::make_shared<const Plan>(accept(*plan, problem, mask));
  }
};

namespace {

/// Whether anything is asked for that may be refused in the backward alone.
bool is_named(const AttentionOptions& options) {
  const PlanOptions& plan = options.plan;
  return plan.order != "auto" || plan.placement != "auto" || !plan.arithmetic.empty() ||
         plan.tile != TileShape{0, 0} || plan.workers != 0 || !options.kernels.empty() ||
         !options.plans.empty();
}

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
  std::unique_ptr<Backend> made = make_backend(options.device, options.kernels, options.plan.level);
  const Backend& backend = *made;
  backend.check(problem);
  backend.check_mask(mask);
  impl_ = std::make_unique<Impl>(problem, std::move(mask), std::move(made));
  PlanOptions common = options.plan;
  if (common.machine.name.empty()) common.machine = make_machine(backend.machine());
  if (common.residents == 0) common.residents = backend.residents();
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    PlanOptions& own = impl_->of(pass).options;
    own = common;
    own.pass = pass;
    complete(own, backend);
  }
  impl_->forward.options.order = options.forward_order;
  for (const auto& plan : options.plans) impl_->take(plan);
  if (!options.defer_backward || is_named(options)) {
    const auto backward = impl_->backward.given
                              ? impl_->backward.given
                              : cached_plan(problem, impl_->mask, impl_->backward.options);
    if (impl_->has_backward) impl_->has_backward = runs(backend, *backward);
    impl_->planned(Pass::backward);
  }
  impl_->planned(Pass::forward);
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
const Plan& Attention::plan(Pass pass) const { return *impl_->planned(pass).plan; }
int64_t Attention::workspace_bytes(Pass pass) const {
  return impl_->backend->workspace_bytes(plan(pass));
}
int64_t Attention::workspace_bytes(Pass pass, const RunOptions& run) const {
  const auto plan = impl_->plan_for(pass, run);
  const Impl::Planned& whole = impl_->planned(pass);
  if (plan == whole.plan) return whole.workspace;
  return impl_->backend->callers_workspace_bytes(*plan);
}
int64_t Attention::bytes() const {
  const int64_t forward = impl_->forward.bytes, backward = impl_->backward.bytes;
  return impl_->mask.bytes() + (forward ? forward : backward) + (backward ? backward : forward);
}
std::string Attention::kernel(Pass pass) const { return impl_->backend->kernel_name(plan(pass)); }

void check(std::string_view device) { make_backend(device)->check_waits(); }

}  // namespace verbatim
