// The translation for Hopper: one lane copies by TMA, warpgroups multiply by wgmma.
#pragma once

#include <string>

#include "tl/kernel.h"

namespace verbatim::tl {

/// CUDA C++ of a program, in the words of src/backend/cuda/sm90/tl. Throws Error(unsupported)
/// naming what is not translated.
std::string emit_sm90(const Examined& found, const std::string& arithmetic);

}  // namespace verbatim::tl
