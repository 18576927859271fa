// Plain C++ that fixes the meaning: sixteen floats per virtual vector, std::fma where the other
// targets have an instruction. Slow where the compiler's baseline lacks one.
#include <bit>
#include <cmath>

#include "backend/cpu/kernels.h"
#include "core/dtype.h"

namespace verbatim::cpu::portable {
namespace {

constexpr int kBlockRows = 2, kBlockRegisters = 1;  // of the GEMM's register block

struct Vec {
  float v[kLanes];
};

/// Vec of f(lane).
template <class F>
inline Vec lanes(F&& f) {
  Vec out;
  for (int i = 0; i < kLanes; ++i) out.v[i] = f(i);
  return out;
}

inline Vec zero() { return {}; }
inline Vec set1(float x) {
  return lanes([&](int) { return x; });
}
inline Vec load(const float* p) {
  return lanes([&](int i) { return p[i]; });
}
inline void store(float* p, Vec x) {
  for (int i = 0; i < kLanes; ++i) p[i] = x.v[i];
}
// The first lanes alone, the others 0; memory behind them is not touched.
inline Vec load_first(const float* p, int32_t count) {
  return lanes([&](int i) { return i < count ? p[i] : 0.0f; });
}
inline void store_first(float* p, Vec x, int32_t count) {
  for (int i = 0; i < count; ++i) p[i] = x.v[i];
}

constexpr int kRegisterLanes = kLanes;
using Register = Vec;
inline Register load_register(const float* p) { return load(p); }
inline Register set1_register(float x) { return set1(x); }

inline Vec gather(const float* p, int64_t stride) {
  return lanes([&](int i) { return p[i * stride]; });
}

inline Vec add(Vec a, Vec b) {
  return lanes([&](int i) { return a.v[i] + b.v[i]; });
}
inline Vec sub(Vec a, Vec b) {
  return lanes([&](int i) { return a.v[i] - b.v[i]; });
}
inline Vec mul(Vec a, Vec b) {
  return lanes([&](int i) { return a.v[i] * b.v[i]; });
}
inline Vec div(Vec a, Vec b) {
  return lanes([&](int i) { return a.v[i] / b.v[i]; });
}
inline Vec fma(Vec a, Vec b, Vec c) {
  return lanes([&](int i) { return std::fma(a.v[i], b.v[i], c.v[i]); });
}
inline Vec max(Vec a, Vec b) {  // b when unordered
  return lanes([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Vec min(Vec a, Vec b) {  // b when unordered
  return lanes([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}

using Lanes = uint16_t;
inline Lanes lanes_of(uint16_t bits) { return bits; }
inline uint16_t bits_of(Lanes lanes) { return lanes; }
inline Lanes less(Vec a, Vec b) {
  unsigned bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= static_cast<unsigned>(a.v[i] < b.v[i]) << i;
  return static_cast<Lanes>(bits);
}
inline Vec select(Lanes from, Vec a, Vec b) {
  return lanes([&](int i) { return from >> i & 1 ? a.v[i] : b.v[i]; });
}

inline Vec abs(Vec x) {
  return lanes([&](int i) { return std::fabs(x.v[i]); });
}
inline Vec copysign(Vec x, Vec sign) {
  return lanes([&](int i) { return std::copysign(x.v[i], sign.v[i]); });
}
/// 2^n, for n in the low bits of the representation of x.
inline Vec pow2_of_bits(Vec x) {
  return lanes(
      [&](int i) { return std::bit_cast<float>((std::bit_cast<uint32_t>(x.v[i]) + 127) << 23); });
}

inline Vec load_bf16(const uint16_t* p) {
  return lanes([&](int i) { return to_f32(Bf16{p[i]}); });
}
inline void store_bf16(uint16_t* p, Vec x) {
  for (int i = 0; i < kLanes; ++i) p[i] = to_bf16(x.v[i]).bits;
}
inline Vec load_f16(const uint16_t* p) {
  return lanes([&](int i) { return to_f32(F16{p[i]}); });
}
inline void store_f16(uint16_t* p, Vec x) {
  for (int i = 0; i < kLanes; ++i) p[i] = to_f16(x.v[i]).bits;
}

#include "backend/cpu/kernels.inc"

}  // namespace

const KernelTable table = make_table("portable");

}  // namespace verbatim::cpu::portable
