#include <cstddef>
#include <cstdint>
#include <string>

#include "verbatim/dist.h"
#include "verbatim/error.h"

// Any text is a distributed plan, which is proved and then writes, or an Error.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const verbatim::DistPlan plan =
        verbatim::dist_plan_from_json(std::string(reinterpret_cast<const char*>(data), size));
    const std::string text = verbatim::to_json(plan);
    if (verbatim::to_json(verbatim::dist_plan_from_json(text)) != text) __builtin_trap();
  } catch (const verbatim::Error&) {
  }
  return 0;
}
