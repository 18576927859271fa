// Which kernel tables a CPU without kernels of its own can run.
#include "backend/cpu/kernels.h"

namespace verbatim::cpu {

std::span<const KernelTable* const> available_kernels() {
  static const KernelTable* const tables[] = {&portable::table};
  return tables;
}

}  // namespace verbatim::cpu
