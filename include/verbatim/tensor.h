// Views of caller-owned memory: nothing in this library copies a tensor to look at it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace verbatim {

/// e4m3: FP8 with four bits of exponent and three of mantissa, as OCP's OFP8 has it: up to 448, no
/// infinities. Inputs of a forward only.
enum class Dtype { f32, bf16, f16, e4m3 };

/// "f32", "bf16", "f16" or "e4m3".
std::string_view to_string(Dtype dtype);
/// Throws Error when `name` is none of "f32", "bf16", "f16", "e4m3".
Dtype dtype_from_string(std::string_view name);
/// Bytes of one element.
int64_t size_of(Dtype dtype);

/// A strided tensor in (batch, length, heads, dim) layout. Strides count elements, may be 0
/// (expanded) on inputs or leave gaps, and are 1 in the last dimension.
struct TensorView {
  void* data = nullptr;
  Dtype dtype = Dtype::f32;
  std::array<int64_t, 4> shape{};   // [batch, length, heads, dim]
  std::array<int64_t, 4> stride{};  // in elements
  /// Of e4m3, one a head, in the memory of `data`: an element stands for so many times its value.
  /// Null: 1.
  const float* scales = nullptr;

  /// A dense view of `data`: strides follow from the shape, [batch, length, heads, dim].
  static TensorView dense(void* data, Dtype dtype, std::array<int64_t, 4> shape);

  int64_t offset(int64_t b, int64_t l, int64_t h) const {
    return b * stride[0] + l * stride[1] + h * stride[2];
  }
  /// First element of the row (b, l, h); `T` must be the storage type of `dtype`.
  template <class T>
  T* row(int64_t b, int64_t l, int64_t h) const {
    return static_cast<T*>(data) + offset(b, l, h);
  }
};

/// A per-row statistic (LSE, delta): f32, dense, [batch, heads, length].
struct RowView {
  float* data = nullptr;
  std::array<int64_t, 3> shape{};  // [batch, heads, length]

  float* row(int64_t b, int64_t h) const { return data + (b * shape[1] + h) * shape[2]; }
};

}  // namespace verbatim
