#include <cstddef>
#include <cstdint>
#include <string>

#include "tl/parser.h"
#include "verbatim/tl.h"

// Any text is a program, whose layout is one and whose faults can be shown and edited, or has a
// fault that can be shown.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace tl = verbatim::tl;
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const bool sketch : {true, false}) {
    const tl::CheckOptions options{
        .target = {}, .level = verbatim::Level::invariant, .sketch = sketch};
    for (const tl::Diagnostic& fault : tl::check(text, options)) tl::describe(fault, text, "text");
    if (size < 4096) tl::fix(text, options);
  }
  if (tl::parse(text).fault) return 0;
  const std::string once = tl::format(text, "text");
  if (tl::format(once, "once") != once) __builtin_trap();
  return 0;
}
