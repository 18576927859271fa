// Kernels in libraries of their own: what `verbatim tl build` makes.
#pragma once

#include <string>

#include "backend/cuda/library.cuh"

namespace verbatim::cuda {

/// A kernel that was loaded, as one of the registry, and what it is for.
struct LoadedKernel {
  const Library* library;
  Kernel kernel;
};

/// Loads `path`, which then stays loaded. Throws Error(io) when it is no library, and
/// Error(unsupported) when it is another version's.
LoadedKernel load_kernel(const std::string& path);

/// The same of a program whose blocks an index tensor names. Its kernel runs no plans.
struct LoadedSelected {
  const SelectedLibrary* library;
  Kernel kernel;
};
LoadedSelected load_selected(const std::string& path);

}  // namespace verbatim::cuda
