// Which elements of P are dropped: a function of (seed, sequence, query head, query, key) alone,
// positions counted from the start of their sequence, so that tiling, packing, threads and devices
// agree. Host and kernels include this file; it needs nothing.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace verbatim {

/// One block of the generator: 128 random bits.
struct PhiloxBlock {
  uint32_t word[4];
};

/// Philox4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as
/// 1, 2, 3", SC 2011, section 4.3): a bijection of `counter`, chosen by the two words of `key`.
VERBATIM_HD constexpr PhiloxBlock philox4x32_10(PhiloxBlock counter, uint64_t key) {
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter.word[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter.word[2];
    counter = {{static_cast<uint32_t>(product1 >> 32) ^ counter.word[1] ^ key0,
                static_cast<uint32_t>(product1),
                static_cast<uint32_t>(product0 >> 32) ^ counter.word[3] ^ key1,
                static_cast<uint32_t>(product0)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

/// Where dropout counts from: the number of a sequence in its problem, its first query and key.
/// Sequences are numbered through the batch: an entry without documents is one, a packed entry as
/// many as it has documents (sequences(), verbatim/mask.h).
struct DropoutOrigin {
  int64_t sequence = 0, q = 0, k = 0;
};

/// Dropout of one problem. Element (s, h, q, k) of sequence s and query head h draws 16 bits: half
/// k % 2 of word (k % 8) / 2 of the block with key = seed and counter = (q, k / 8, h, s). It is
/// kept iff draw >= threshold, and then scaled by `scale`, so that its expectation is unchanged.
struct Dropout {
  uint64_t seed = 0;
  uint32_t threshold = 0;  // round(probability * 2^16), at most 2^16 - 1; 0: nothing is dropped
  float scale = 1;         // 2^16 / (2^16 - threshold)
  const uint64_t* seed_at = nullptr;  // where the seed lies instead of in `seed`

  /// `probability` is in [0, 1).
  VERBATIM_HD static constexpr Dropout make(double probability, uint64_t seed) {
    const uint32_t rounded = static_cast<uint32_t>(probability * 65536 + 0.5);
    const uint32_t threshold = rounded < 65535 ? rounded : 65535;
    return {seed, threshold, 65536.0f / static_cast<float>(65536 - threshold)};
  }

  VERBATIM_HD constexpr bool enabled() const { return threshold != 0; }

  /// The eight draws of keys 8 * k_block .. 8 * k_block + 7, in words of two.
  VERBATIM_HD constexpr PhiloxBlock block(uint32_t s, uint32_t h, uint32_t q,
                                          uint32_t k_block) const {
    return philox4x32_10({{q, k_block, h, s}}, seed_at ? *seed_at : seed);
  }

  /// Bit i is set iff key 8 * k_block + i is kept.
  VERBATIM_HD constexpr uint32_t keep8(uint32_t s, uint32_t h, uint32_t q, uint32_t k_block) const {
    const PhiloxBlock draws = block(s, h, q, k_block);
    uint32_t bits = 0;
    for (int i = 0; i < 8; ++i) {
      const uint32_t draw = draws.word[i / 2] >> (16 * (i % 2)) & 0xffff;
      bits |= static_cast<uint32_t>(draw >= threshold) << i;
    }
    return bits;
  }

  VERBATIM_HD constexpr bool keep(uint32_t s, uint32_t h, uint32_t q, uint32_t k) const {
    return keep8(s, h, q, k / 8) >> (k % 8) & 1;
  }
};

}  // namespace verbatim
