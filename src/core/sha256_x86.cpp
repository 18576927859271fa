#include "core/sha256_blocks.h"

#ifdef __x86_64__

#include <cpuid.h>
#include <immintrin.h>

namespace verbatim {
namespace {

__attribute__((target("sha,sse4.1"))) void by_instructions(std::array<uint32_t, 8>& state,
                                                           const std::byte* blocks, size_t count) {
  const auto word = [&](int i) { return static_cast<int>(state[i]); };
  // Two rounds take a, b, e, f of one register and c, d, g, h of the other, and leave what they
  // make in the latter: so the two change places.
  __m128i abef = _mm_set_epi32(word(0), word(1), word(4), word(5));
  __m128i cdgh = _mm_set_epi32(word(2), word(3), word(6), word(7));
  const __m128i big_endian = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
  for (; count > 0; --count, blocks += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];  // the last 16 words of the schedule, in a circle of four times four
#pragma GCC unroll 16
    for (int t = 0; t < 16; ++t) {
      __m128i& now = w[t % 4];
      if (t < 4) {
        now = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks + 16 * t)),
                               big_endian);
      } else {
        const __m128i before = w[(t + 3) % 4];
        const __m128i seven = _mm_alignr_epi8(before, w[(t + 2) % 4], 4);  // words t - 7
        now = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(now, w[(t + 1) % 4]), seven),
                                   before);
      }
      const __m128i k = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kSha256Round + 4 * t));
      const __m128i sum = _mm_add_epi32(now, k);
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0E));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  alignas(16) uint32_t ab[4], cd[4];
  _mm_store_si128(reinterpret_cast<__m128i*>(ab), abef);
  _mm_store_si128(reinterpret_cast<__m128i*>(cd), cdgh);
  state = {ab[3], ab[2], cd[3], cd[2], ab[1], ab[0], cd[1], cd[0]};
}

}  // namespace

Sha256Blocks sha256_blocks_x86() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool has = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA);
  return has && __builtin_cpu_supports("sse4.1") ? by_instructions : nullptr;
}

}  // namespace verbatim

#else

verbatim::Sha256Blocks verbatim::sha256_blocks_x86() { return nullptr; }

#endif
