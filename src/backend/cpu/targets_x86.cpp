// Which kernel tables an x86 CPU can run.
#include <vector>

#include "backend/cpu/kernels.h"

namespace verbatim::cpu {

std::span<const KernelTable* const> available_kernels() {
  static const std::vector<const KernelTable*> tables = [] {
    std::vector<const KernelTable*> found;
    // Every CPU with AVX2 has F16C, a name that not all compilers know here.
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                            __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512vl");
    if (has_avx512) found.push_back(&avx512::table);
    if (has_avx2) found.push_back(&avx2::table);
    found.push_back(&portable::table);
    return found;
  }();
  return tables;
}

}  // namespace verbatim::cpu
