// AVX2 with FMA and F16C: two registers per virtual vector. Compiled with the target's own flags,
// so it uses no inline function of another header (see kernels_avx512.cpp).
#include <immintrin.h>

#include "backend/cpu/kernels.h"

namespace verbatim::cpu::avx2 {
namespace {

constexpr int kBlockRows = 4, kBlockRegisters = 3;  // of the GEMM: 12 sums, 3 columns, 1 row

struct Vec {
  __m256 lo, hi;
};

inline Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Vec set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Vec x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
// The first lanes alone, the others 0; memory behind them is not touched.
struct FirstLanes {
  __m256i lo, hi;
};
inline FirstLanes first_lanes(int32_t lanes) {
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm256_cmpgt_epi32(_mm256_set1_epi32(lanes), index),
          _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes - 8), index)};
}
inline Vec load_first(const float* p, int32_t lanes) {
  const FirstLanes first = first_lanes(lanes);
  return {_mm256_maskload_ps(p, first.lo), _mm256_maskload_ps(p + 8, first.hi)};
}
inline void store_first(float* p, Vec x, int32_t lanes) {
  const FirstLanes first = first_lanes(lanes);
  _mm256_maskstore_ps(p, first.lo, x.lo);
  _mm256_maskstore_ps(p + 8, first.hi, x.hi);
}

constexpr int kRegisterLanes = 8;
using Register = __m256;
inline Register load_register(const float* p) { return _mm256_loadu_ps(p); }
inline Register set1_register(float x) { return _mm256_set1_ps(x); }
inline Register fma(Register a, Register b, Register c) { return _mm256_fmadd_ps(a, b, c); }
inline void store(float* p, Register x) { _mm256_storeu_ps(p, x); }

inline Vec gather(const float* p, int64_t stride) {
  const __m256i lane = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
  const __m256i index = _mm256_mullo_epi32(lane, _mm256_set1_epi32(static_cast<int>(stride)));
  return {_mm256_i32gather_ps(p, index, 4), _mm256_i32gather_ps(p + 8 * stride, index, 4)};
}

inline Vec add(Vec a, Vec b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline Vec sub(Vec a, Vec b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline Vec mul(Vec a, Vec b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline Vec div(Vec a, Vec b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }

struct Lanes {
  __m256 lo, hi;
};
inline __m256 eight_lanes_of(int bits) {
  const __m256i lane = _mm256_set_epi32(128, 64, 32, 16, 8, 4, 2, 1);
  const __m256i set = _mm256_and_si256(_mm256_set1_epi32(bits), lane);
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, lane));
}
inline Lanes lanes_of(uint16_t bits) {
  return {eight_lanes_of(bits & 0xff), eight_lanes_of(bits >> 8)};
}
inline uint16_t bits_of(Lanes lanes) {
  return static_cast<uint16_t>(_mm256_movemask_ps(lanes.lo) | _mm256_movemask_ps(lanes.hi) << 8);
}
inline Lanes less(Vec a, Vec b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
inline Vec select(Lanes lanes, Vec a, Vec b) {
  return {_mm256_blendv_ps(b.lo, a.lo, lanes.lo), _mm256_blendv_ps(b.hi, a.hi, lanes.hi)};
}

inline Vec abs(Vec x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.lo), _mm256_andnot_ps(sign, x.hi)};
}
inline Vec copysign(Vec x, Vec sign) {
  const __m256 bit = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_andnot_ps(bit, x.lo), _mm256_and_ps(bit, sign.lo)),
          _mm256_or_ps(_mm256_andnot_ps(bit, x.hi), _mm256_and_ps(bit, sign.hi))};
}
inline __m256 pow2_of_bits(__m256 x) {
  const __m256i n = _mm256_add_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(n, 23));
}
/// 2^n, for n in the low bits of the representation of x.
inline Vec pow2_of_bits(Vec x) { return {pow2_of_bits(x.lo), pow2_of_bits(x.hi)}; }

inline __m128i load8(const uint16_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline void store8(uint16_t* p, __m128i x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), x); }
inline __m256 from_bf16(__m128i x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
inline __m128i to_bf16(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x), upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
  const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i result = _mm256_blendv_epi8(rounded, quiet, nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1));
}
inline Vec load_bf16(const uint16_t* p) { return {from_bf16(load8(p)), from_bf16(load8(p + 8))}; }
inline void store_bf16(uint16_t* p, Vec x) {
  store8(p, to_bf16(x.lo));
  store8(p + 8, to_bf16(x.hi));
}
inline Vec load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(load8(p)), _mm256_cvtph_ps(load8(p + 8))};
}
inline void store_f16(uint16_t* p, Vec x) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  store8(p, _mm256_cvtps_ph(x.lo, kNearest));
  store8(p + 8, _mm256_cvtps_ph(x.hi, kNearest));
}

#include "backend/cpu/kernels.inc"

}  // namespace

const KernelTable table = make_table("avx2");

}  // namespace verbatim::cpu::avx2
