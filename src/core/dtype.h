// Conversions between f32 and the 16-bit storage types, round to nearest even.
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

inline float to_f32(float x) { return x; }
inline float to_f32(Bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
float to_f32(F16 x);

Bf16 to_bf16(float x);
F16 to_f16(float x);

/// from_f32<T>(x) for T in float, Bf16, F16.
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

/// Calls f(T{}) with the storage type of `dtype`.
template <class F>
decltype(auto) dispatch_dtype(Dtype dtype, F&& f) {
  switch (dtype) {
    case Dtype::bf16:
      return f(Bf16{});
    case Dtype::f16:
      return f(F16{});
    default:
      return f(float{});
  }
}

}  // namespace verbatim
