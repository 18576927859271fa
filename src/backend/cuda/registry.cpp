#include "backend/cuda/registry.h"

#include "backend/cuda/sm80/bwd/bwd.h"
#include "backend/cuda/sm80/fwd/fwd.h"
#include "backend/cuda/sm90/bwd/bwd.h"
#include "backend/cuda/sm90/fwd/fwd.h"

namespace verbatim::cuda {

std::span<const Kernel> kernels() {
  static const Kernel table[] = {sm90::forward_kernel(), sm90::backward_kernel(),
                                 sm80::forward_kernel(), sm80::backward_kernel()};
  return table;
}

}  // namespace verbatim::cuda
