#include "backend/cpu/kernels.h"

#include <cstdlib>
#include <string>
#include <string_view>

#include "verbatim/error.h"

namespace verbatim::cpu {
namespace {

const KernelTable& choose() {
  const auto tables = available_kernels();
  const char* wanted = std::getenv("VERBATIM_CPU_KERNELS");
  if (wanted == nullptr || *wanted == '\0') return *tables.front();
  std::string names;
  for (const KernelTable* table : tables) {
    if (std::string_view(wanted) == table->name) return *table;
    names += (names.empty() ? "" : ", ") + std::string(table->name);
  }
  throw Error(ErrorCode::unsupported, "cpu.kernels", "this CPU has no such kernels",
              {.argument = "VERBATIM_CPU_KERNELS",
               .got = wanted,
               .expected = names,
               .nearest = tables.front()->name});
}

}  // namespace

const KernelTable& kernels() {
  static const KernelTable& chosen = choose();
  return chosen;
}

}  // namespace verbatim::cpu
