#include "core/dtype.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "verbatim/error.h"

namespace verbatim {

std::string_view to_string(Dtype dtype) {
  switch (dtype) {
    case Dtype::bf16:
      return "bf16";
    case Dtype::f16:
      return "f16";
    case Dtype::e4m3:
      return "e4m3";
    default:
      return "f32";
  }
}

Dtype dtype_from_string(std::string_view name) {
  for (Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16, Dtype::e4m3}) {
    if (name == to_string(dtype)) return dtype;
  }
  static constexpr std::array<std::pair<std::string_view, const char*>, 4> kLongNames{
      {{"float32", "f32"}, {"bfloat16", "bf16"}, {"float16", "f16"}, {"float8_e4m3fn", "e4m3"}}};
  const auto meant = std::ranges::find(kLongNames, name, &decltype(kLongNames)::value_type::first);
  throw Error(ErrorCode::invalid_argument, "dtype", "unknown dtype",
              {.argument = "dtype",
               .got = "'" + std::string(name) + "'",
               .expected = "f32, bf16, f16 or e4m3",
               .nearest = meant == kLongNames.end() ? "" : meant->second});
}

int64_t size_of(Dtype dtype) { return dtype == Dtype::f32 ? 4 : dtype == Dtype::e4m3 ? 1 : 2; }

TensorView TensorView::dense(void* data, Dtype dtype, std::array<int64_t, 4> shape) {
  return {data, dtype, shape, {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1}};
}

Bf16 to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return {static_cast<uint16_t>((bits >> 16) | 0x40)};  // stay a quiet NaN
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

float to_f32(F16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  const uint32_t exponent = (x.bits >> 10) & 0x1f;
  const uint32_t mantissa = x.bits & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000 | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  return sign ? -magnitude : magnitude;
}

F16 to_f16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000)
    return {static_cast<uint16_t>(sign | 0x7e00 | ((bits >> 13) & 0x3ff))};
  if (magnitude >= 0x47800000) return {static_cast<uint16_t>(sign | 0x7c00)};  // 2^16 and beyond
  if (magnitude < 0x38800000) {  // below 2^-14: a multiple of 2^-24
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p24f;
    return {static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(scaled)))};
  }
  const uint32_t rounded = magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1);
  return {static_cast<uint16_t>(sign | (rounded >> 13))};
}

float to_f32(E4m3 x) {
  const uint32_t exponent = (x.bits >> 3) & 0xf, mantissa = x.bits & 7;
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x80) << 24;
  if (exponent == 0xf && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::bit_cast<float>(((exponent + 120) << 23) | (mantissa << 20));
  return sign ? -magnitude : magnitude;
}

E4m3 to_e4m3(float x) {
  constexpr uint8_t kNan = 0x7f, kLargest = 0x7e;
  if (std::isnan(x)) return {kNan};
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint8_t sign = static_cast<uint8_t>((bits >> 24) & 0x80);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude >= 0x43e00000) return {static_cast<uint8_t>(sign | kLargest)};  // 448 and beyond
  if (magnitude < 0x3c800000) {  // below 2^-6: a multiple of 2^-9
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p9f;
    return {static_cast<uint8_t>(sign | static_cast<uint8_t>(std::nearbyint(scaled)))};
  }
  const uint32_t rounded = magnitude - 0x3c000000 + 0x7ffff + ((magnitude >> 20) & 1);
  return {static_cast<uint8_t>(sign | (rounded >> 20))};
}

}  // namespace verbatim
