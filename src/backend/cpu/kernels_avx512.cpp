// AVX-512: one register per virtual vector. This file is compiled with the target's own flags, so
// it uses no inline function of another header: the linker could pick its copy for every target.
#include <immintrin.h>

#include "backend/cpu/kernels.h"

namespace verbatim::cpu::avx512 {
namespace {

constexpr int kBlockRows = 8, kBlockRegisters = 2;  // of the GEMM's register block

struct Vec {
  __m512 v;
};

inline Vec zero() { return {_mm512_setzero_ps()}; }
inline Vec set1(float x) { return {_mm512_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
// The first lanes alone, the others 0; memory behind them is not touched.
inline Vec load_first(const float* p, int32_t lanes) {
  return {_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << lanes) - 1), p)};
}
inline void store(float* p, Vec x) { _mm512_storeu_ps(p, x.v); }
inline void store_first(float* p, Vec x, int32_t lanes) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << lanes) - 1), x.v);
}

constexpr int kRegisterLanes = kLanes;
using Register = Vec;
inline Register load_register(const float* p) { return load(p); }
inline Register set1_register(float x) { return set1(x); }

inline Vec gather(const float* p, int64_t stride) {
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i index = _mm512_mullo_epi32(lane, _mm512_set1_epi32(static_cast<int>(stride)));
  return {_mm512_i32gather_ps(index, p, 4)};
}

inline Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }  // b when unordered
inline Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }  // b when unordered

using Lanes = __mmask16;
inline Lanes lanes_of(uint16_t bits) { return bits; }
inline uint16_t bits_of(Lanes lanes) { return lanes; }
inline Lanes less(Vec a, Vec b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ); }
inline Vec select(Lanes lanes, Vec a, Vec b) { return {_mm512_mask_blend_ps(lanes, b.v, a.v)}; }

inline Vec abs(Vec x) { return {_mm512_abs_ps(x.v)}; }
inline Vec copysign(Vec x, Vec sign) {
  const __m512i bit = _mm512_set1_epi32(INT32_MIN);
  return {_mm512_castsi512_ps(
      _mm512_ternarylogic_epi32(bit, _mm512_castps_si512(sign.v), _mm512_castps_si512(x.v), 0xca))};
}
/// 2^n, for n in the low bits of the representation of x.
inline Vec pow2_of_bits(Vec x) {
  const __m512i n = _mm512_add_epi32(_mm512_castps_si512(x.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(n, 23))};
}

inline Vec load_bf16(const uint16_t* p) {
  const __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(x, 16))};
}
inline void store_bf16(uint16_t* p, Vec x) {
  const __m512i bits = _mm512_castps_si512(x.v), upper = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_epi32(upper, _mm512_set1_epi32(1));
  const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
  const __m512i quiet = _mm512_or_epi32(upper, _mm512_set1_epi32(0x40));
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(nan, rounded, quiet)));
}
inline Vec load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline void store_f16(uint16_t* p, Vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#include "backend/cpu/kernels.inc"

}  // namespace

const KernelTable table = make_table("avx512");

}  // namespace verbatim::cpu::avx512
