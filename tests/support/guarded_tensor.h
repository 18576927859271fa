// Tensors for tests: gaps, expanded dimensions, and guards that notice a stray write.
#pragma once

#include <array>
#include <cstring>
#include <vector>

#include "core/dtype.h"
#include "verbatim/tensor.h"

namespace verbatim::test {

/// Memory of a tensor, every byte 0xff at first: NaN in each dtype, in elements, gaps and guards.
class GuardedTensor {
 public:
  GuardedTensor(Dtype dtype, std::array<int64_t, 4> shape, std::array<int64_t, 4> stride)
      : view_{nullptr, dtype, shape, stride} {
    int64_t span = 1;  // elements from the first to the last
    for (int i = 0; i < 4; ++i) {
      if (shape[i] == 0) empty_ = true;
      span += (shape[i] - 1) * stride[i];
    }
    bytes_.assign((empty_ ? 0 : span * size_of(dtype)) + 2 * kGuard, 0xff);
    view_.data = bytes_.data() + kGuard;
  }
  GuardedTensor(Dtype dtype, std::array<int64_t, 4> shape)
      : GuardedTensor(dtype, shape, TensorView::dense(nullptr, dtype, shape).stride) {}
  /// A row statistic [batch, heads, length].
  static GuardedTensor rows(std::array<int64_t, 3> shape) {
    return GuardedTensor(Dtype::f32, {1, shape[0], shape[1], shape[2]});
  }

  GuardedTensor(GuardedTensor&& other) = default;
  GuardedTensor(const GuardedTensor&) = delete;

  const TensorView& view() const { return view_; }
  RowView row_view() const {
    return {static_cast<float*>(view_.data), {view_.shape[1], view_.shape[2], view_.shape[3]}};
  }

  float get(int64_t b, int64_t l, int64_t h, int64_t d) const {
    return dispatch_dtype(view_.dtype,
                          [&]<class T>(T) { return to_f32(view_.row<T>(b, l, h)[d]); });
  }
  void set(int64_t b, int64_t l, int64_t h, int64_t d, float value) {
    dispatch_dtype(view_.dtype, [&]<class T>(T) { view_.row<T>(b, l, h)[d] = from_f32<T>(value); });
  }
  /// All memory, guards included: elements start kGuard bytes in.
  std::vector<uint8_t>& bytes() { return bytes_; }
  static constexpr int64_t kGuard = 256;  // bytes on both sides

  /// Every byte 0xff again.
  void poison() { std::memset(bytes_.data(), 0xff, bytes_.size()); }

  /// True when no byte outside the elements was written.
  bool guards_intact() const {
    std::vector<bool> element(bytes_.size(), false);
    const int64_t size = size_of(view_.dtype);
    for (int64_t b = 0; b < view_.shape[0] && !empty_; ++b)
      for (int64_t l = 0; l < view_.shape[1]; ++l)
        for (int64_t h = 0; h < view_.shape[2]; ++h)
          for (int64_t i = 0; i < view_.shape[3] * size; ++i)
            element[kGuard + view_.offset(b, l, h) * size + i] = true;
    for (size_t i = 0; i < bytes_.size(); ++i)
      if (!element[i] && bytes_[i] != 0xff) return false;
    return true;
  }

 private:
  TensorView view_;
  bool empty_ = false;
  std::vector<uint8_t> bytes_;
};

}  // namespace verbatim::test
