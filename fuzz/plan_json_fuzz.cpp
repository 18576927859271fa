#include <cstddef>
#include <cstdint>
#include <string>

#include "verbatim/error.h"
#include "verbatim/plan.h"

// Any text is a plan, which then writes and is proved or refused, or an Error.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const verbatim::Plan plan =
        verbatim::plan_from_json(std::string(reinterpret_cast<const char*>(data), size));
    const std::string text = verbatim::to_json(plan);
    if (verbatim::to_json(verbatim::plan_from_json(text)) != text) __builtin_trap();
    verbatim::verify(plan);
  } catch (const verbatim::Error&) {
  }
  return 0;
}
