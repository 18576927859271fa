// What every tensor file that is accepted must satisfy.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "core/tensor_file.h"
#include "verbatim/error.h"

namespace verbatim {

/// Parses `data`: an Error is an answer; any other exception, or a tensor that does not lie inside
/// the file and fill its shape, is a crash.
template <class Parse>
void check_tensor_file(const uint8_t* data, size_t size, Parse&& parse) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  TensorFile file;
  try {
    file = parse(std::vector<std::byte>(bytes, bytes + size));
  } catch (const Error&) {
    return;
  }
  for (const TensorFile::Entry& entry : file.tensors) {
    int64_t expected = entry.element_bytes();
    for (int64_t extent : entry.shape) expected *= extent;
    if (entry.begin < 0 || entry.end > static_cast<int64_t>(file.bytes.size()) ||
        entry.end - entry.begin != expected)
      std::abort();
  }
}

}  // namespace verbatim
