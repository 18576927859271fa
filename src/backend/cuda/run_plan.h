// One launch of a plan, whole or a piece: its memory, its kernel, and who has to know of its end.
#pragma once

#include <functional>
#include <utility>

#include "backend/cuda/arguments.h"
#include "backend/cuda/device/params.h"
#include "backend/cuda/device_plan.h"
#include "backend/cuda/kernel.h"
#include "backend/cuda/limits.h"
#include "backend/cuda/runtime.h"
#include "verbatim/plan.h"
#include "verbatim/run.h"

namespace verbatim::cuda {

/// Most query and KV tiles of any order.
std::pair<int32_t, int32_t> extent_of(const Plan& plan);
PlanCounts counts_of(const Plan& plan);

/// Bytes of device memory that a launch of `plan` by `kernel` takes besides tensors and plan.
int64_t launch_bytes(const Kernel& kernel, const Plan& plan);

/// What both passes do: fills in the plan and the memory, and launches. `held` is the plan on the
/// device. For ForwardParams and BackwardParams.
template <class Params>
void run_plan(const Device& device, const Kernel& kernel,
              const std::function<void(const Params&, const LaunchContext&)>& launch,
              const Plan& plan, const DevicePlan& held, const RunOptions& run,
              int64_t spin_limit_ns, Params params, const RecordView& record = {});

}  // namespace verbatim::cuda
