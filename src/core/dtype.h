// Conversions between f32 and the storage types of 16 and 8 bits, round to nearest even.
#pragma once

#include <bit>
#include <cstdint>

#include "verbatim/tensor.h"

namespace verbatim {

/// Storage of a bf16 element: the upper half of an f32.
struct Bf16 {
  uint16_t bits;
};
/// Storage of an IEEE binary16 element.
struct F16 {
  uint16_t bits;
};
/// Storage of an FP8 element: OFP8's E4M3 (Open Compute Project 2023), 0x7f and 0xff being NaN.
struct E4m3 {
  uint8_t bits;
};
/// What P, 1 at most, is multiplied with before it is rounded to e4m3: the largest power of two
/// that e4m3 holds. So P keeps its three bits down to 2^-14, and is not 0 down to 2^-18.
inline constexpr float kE4m3One = 256;

inline float to_f32(float x) { return x; }
inline float to_f32(Bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
float to_f32(F16 x);
float to_f32(E4m3 x);

Bf16 to_bf16(float x);
F16 to_f16(float x);
/// Beyond 448 it is 448, as the conversions of GPUs have it; NaN is 0x7f.
E4m3 to_e4m3(float x);

/// from_f32<T>(x) for T in float, Bf16, F16, E4m3.
template <class T>
T from_f32(float x);
template <>
inline float from_f32<float>(float x) {
  return x;
}
template <>
inline Bf16 from_f32<Bf16>(float x) {
  return to_bf16(x);
}
template <>
inline F16 from_f32<F16>(float x) {
  return to_f16(x);
}
template <>
inline E4m3 from_f32<E4m3>(float x) {
  return to_e4m3(x);
}

/// Calls f(T{}) with the storage type of `dtype`.
template <class F>
decltype(auto) dispatch_dtype(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::bf16:
      return f(Bf16{});
    case Dtype::f16:
      return f(F16{});
    case Dtype::e4m3:
      return f(E4m3{});
    default:
      return f(float{});
  }
}

}  // namespace verbatim
