// SHA-256 of byte streams (FIPS 180-4): how reports and tests name the bits of a tensor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace verbatim {

class Sha256 {
 public:
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text))); }
  /// 64 lower-case hex digits of everything passed to update(); the object is used up.
  std::string hex();

 private:
  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> pending_{};
  uint64_t length_ = 0;  // bytes so far
};

std::string sha256(std::span<const std::byte> bytes);
std::string sha256(std::string_view text);

}  // namespace verbatim
