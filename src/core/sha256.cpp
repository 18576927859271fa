#include "core/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/sha256_blocks.h"

namespace verbatim {
namespace {

uint32_t load_big_endian(const std::byte* p) {
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i) word = word << 8 | std::to_integer<uint32_t>(p[i]);
  return word;
}

}  // namespace

void sha256_blocks_portable(std::array<uint32_t, 8>& state, const std::byte* blocks, size_t count) {
  for (; count > 0; --count, blocks += 64) {
    uint32_t w[64];
    for (int t = 0; t < 16; ++t) w[t] = load_big_endian(blocks + 4 * t);
    for (int t = 16; t < 64; ++t) {
      const uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ w[t - 15] >> 3;
      const uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ w[t - 2] >> 10;
      w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (int t = 0; t < 64; ++t) {
      const uint32_t sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
      const uint32_t sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
      const uint32_t t1 = h + sum1 + ((e & f) ^ (~e & g)) + kSha256Round[t] + w[t];
      const uint32_t t2 = sum0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const uint32_t worked[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; ++i) state[i] += worked[i];
  }
}

void Sha256::update(std::span<const std::byte> bytes) {
  static const Sha256Blocks x86 = sha256_blocks_x86();
  const Sha256Blocks take = x86 ? x86 : sha256_blocks_portable;
  size_t filled = length_ % 64;
  length_ += bytes.size();
  while (!bytes.empty()) {
    if (filled == 0 && bytes.size() >= 64) {
      take(state_, bytes.data(), bytes.size() / 64);
      bytes = bytes.last(bytes.size() % 64);
      continue;
    }
    const size_t count = std::min(64 - filled, bytes.size());
    std::memcpy(pending_.data() + filled, bytes.data(), count);
    bytes = bytes.subspan(count);
    filled += count;
    if (filled == 64) {
      take(state_, pending_.data(), 1);
      filled = 0;
    }
  }
}

std::string Sha256::hex() {
  const uint64_t bits = length_ * 8;
  std::array<std::byte, 72> tail{std::byte{0x80}};  // 0x80, zeros, then the length in bits
  const size_t zeros = (119 - length_ % 64) % 64;
  for (int i = 0; i < 8; ++i) tail[1 + zeros + i] = static_cast<std::byte>(bits >> (56 - 8 * i));
  update(std::span(tail).first(1 + zeros + 8));

  std::string text;
  for (uint32_t word : state_) {
    for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 15];
  }
  return text;
}

std::string sha256(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hex();
}

std::string sha256(std::string_view text) { return sha256(std::as_bytes(std::span(text))); }

}  // namespace verbatim
