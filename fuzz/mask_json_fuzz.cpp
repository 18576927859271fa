#include <cstddef>
#include <cstdint>
#include <string>

#include "verbatim/error.h"
#include "verbatim/mask.h"

// Any text is a valid mask, which then writes, tiles and converts, or an Error.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const verbatim::Mask mask =
        verbatim::mask_from_json(std::string(reinterpret_cast<const char*>(data), size));
    const std::string text = verbatim::to_json(mask);
    if (verbatim::to_json(verbatim::mask_from_json(text)) != text) __builtin_trap();
    if (mask.q_len() > 1024 || mask.kv_len() > 1024) return 0;
    for (const verbatim::HeadMask& head : mask.variants()) {
      const verbatim::TileMap tiles(head, {16, 32});
      if (tiles.count() < tiles.count_full()) __builtin_trap();
      const auto dense = verbatim::to_dense(head);
      const auto again = verbatim::masks::from_dense(dense, head.q_len, head.kv_len);
      if (again.area(1, 1, 1) != head.area()) __builtin_trap();
    }
    verbatim::to_mask_mod(mask);
  } catch (const verbatim::Error&) {
  }
  return 0;
}
