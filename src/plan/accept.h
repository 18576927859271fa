// A plan that the caller brings, for one problem under one mask.
#pragma once

#include "verbatim/mask.h"
#include "verbatim/plan.h"

namespace verbatim {

/// Throws Error(invalid_plan) in the name of `operation` where the plan has orders for other heads,
/// groups or lengths than its problem, or none. verify() takes that for granted.
void check_sizes(const Plan& plan, const char* operation);

/// `plan` with the residency that its proof needs, the seed of `problem` and a level of gpu_to_gpu
/// at most: nothing says what plans of other problems would be. Throws what verify() throws, and
/// Error(invalid_plan) naming the field of the problem, or the head whose tiles, slices, sequences
/// or padding are not those of the mask.
Plan accept(Plan plan, const Problem& problem, const Mask& mask);

}  // namespace verbatim
