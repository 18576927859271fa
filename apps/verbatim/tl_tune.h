// `verbatim tl reason --tune`: sizes of a program by measuring them.
#pragma once

#include <string>

#include "verbatim/mask.h"
#include "verbatim/tl.h"

namespace verbatim::app {

/// What `options` leaves open as the fastest on `device` has it, each choice built with nvcc and
/// timed on the problem under `mask`; a table of them goes to stdout. Throws Error without such a
/// device or nvcc.
tl::ReasonOptions tune(const std::string& sketch, const std::string& file,
                       const tl::ReasonOptions& options, const Mask& mask,
                       const std::string& device);

}  // namespace verbatim::app
