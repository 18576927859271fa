// A row of a causal forward is the same bits whether its sequence is there at once, in chunks, or
// one query at a time, alone or beside rows of other lengths.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cuda/gpu_case.h"
#include "core/random.h"

namespace verbatim::test {
namespace {

/// A dense tensor on the device that tests fill from others.
class DeviceTensor {
 public:
  DeviceTensor(Dtype dtype, std::array<int64_t, 4> shape)
      : view_(TensorView::dense(nullptr, dtype, shape)) {
    bytes_ = static_cast<size_t>(shape[0] * view_.stride[0] * size_of(dtype));
    cuda::check(cudaMalloc(&view_.data, bytes_), "test");
    cuda::check(cudaMemset(view_.data, 0xff, bytes_), "test");  // NaN in each dtype
  }
  ~DeviceTensor() { cudaFree(view_.data); }
  DeviceTensor(const DeviceTensor&) = delete;
  DeviceTensor& operator=(const DeviceTensor&) = delete;

  const TensorView& view() const { return view_; }
  RowView rows() const {  // of shape [1, batch, heads, length]
    return {static_cast<float*>(view_.data), {view_.shape[1], view_.shape[2], view_.shape[3]}};
  }
  /// Rows [begin, begin + count) of `from` become rows 0 .. of batch entry b.
  void take(int64_t b, const TensorView& from, int64_t begin, int64_t count) {
    cuda::check(cudaMemcpy(view_.row<uint16_t>(b, 0, 0), from.row<uint16_t>(0, begin, 0),
                           static_cast<size_t>(count * from.stride[1]) * sizeof(uint16_t),
                           cudaMemcpyDeviceToDevice),
                "test");
  }
  std::vector<uint8_t> download() const {
    std::vector<uint8_t> bytes(bytes_);
    cuda::check(cudaMemcpy(bytes.data(), view_.data, bytes_, cudaMemcpyDeviceToHost), "test");
    return bytes;
  }

 private:
  TensorView view_;
  size_t bytes_ = 0;
};

/// O and LSE of some rows, as bytes.
struct Outputs {
  std::vector<uint8_t> o, lse;
};

struct Shape {
  HeadDims dims;
  int64_t q_heads, kv_heads, length;
};

/// A sequence of which any rows can be attended to by themselves.
class Sequence {
 public:
  explicit Sequence(const Shape& shape)
      : shape_(shape),
        q_(Dtype::bf16, {1, shape.length, shape.q_heads, shape.dims.qk}),
        k_(Dtype::bf16, {1, shape.length, shape.kv_heads, shape.dims.qk}),
        v_(Dtype::bf16, {1, shape.length, shape.kv_heads, shape.dims.v}) {
    uint64_t seed = 31;
    for (GpuTensor* input : {&q_, &k_, &v_}) {
      fill_normal(input->host.view(), seed++);
      input->upload();
    }
  }

  /// The first key gets nearly all weight, and 0 in V; products of the next sixty are too small for
  /// f32 and negative, and those of all others, which rows of the first ones do not see, are not.
  void make_zeros() {
    for (int64_t l = 0; l < shape_.length; ++l) {
      for (int64_t d = 0; d < shape_.dims.qk; ++d) {
        for (int64_t h = 0; h < shape_.q_heads; ++h) q_.host.set(0, l, h, d, d == 0 ? 29 : 0);
        for (int64_t h = 0; h < shape_.kv_heads; ++h) {
          const float root = std::sqrt(static_cast<float>(shape_.dims.qk));
          k_.host.set(0, l, h, d, l == 0 && d == 0 ? root : 0);  // at a scale of 3 / root
        }
      }
      for (int64_t h = 0; h < shape_.kv_heads; ++h)
        for (int64_t d = 0; d < shape_.dims.v; ++d)
          v_.host.set(0, l, h, d, l == 0 ? 0 : l < 60 ? -4e-8f : 1);
    }
    for (GpuTensor* input : {&q_, &k_, &v_}) input->upload();
  }

  /// O and LSE of queries [s, s + count) for each s of `starts`, of which each sees its own
  /// position and up to `window` before it: a batch of rows of unequal lengths, with NaN behind the
  /// keys of the shorter ones.
  Outputs rows(const std::string& arithmetic, const std::vector<int64_t>& starts, int64_t count,
               int64_t window) const {
    const int64_t batch = std::ssize(starts), keys = std::ranges::max(starts) + count;
    const int64_t q_heads = shape_.q_heads, kv_heads = shape_.kv_heads;
    const auto [dim, dim_v] = shape_.dims;
    DeviceTensor q(Dtype::bf16, {batch, count, q_heads, dim});
    DeviceTensor o(Dtype::bf16, {batch, count, q_heads, dim_v});
    DeviceTensor k(Dtype::bf16, {batch, keys, kv_heads, dim});
    DeviceTensor v(Dtype::bf16, {batch, keys, kv_heads, dim_v});
    DeviceTensor lse(Dtype::f32, {1, batch, q_heads, count});
    std::vector<HeadMask> variants;
    std::vector<int32_t> variant_of;
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t start = starts[b];
      q.take(b, q_.view(), start, count);
      k.take(b, k_.view(), 0, start + count);
      v.take(b, v_.view(), 0, start + count);
      const int64_t lo = window < keys ? start - window : Slice::kNoLow;
      variants.push_back({count, keys, {{0, count, 0, start + count, lo, start}}, {}, {}});
      variant_of.push_back(static_cast<int32_t>(b));
    }
    Problem p;
    p.batch = batch;
    p.q_heads = q_heads;
    p.kv_heads = kv_heads;
    p.q_len = count;
    p.kv_len = keys;
    p.head_dim = dim;
    p.head_dim_v = dim_v;
    p.dtype = Dtype::bf16;
    p.scale = 3 / std::sqrt(static_cast<double>(dim));  // far enough from 0 that bases move
    PlanOptions options;
    options.pass = Pass::forward;
    options.order = "auto";
    options.arithmetic = arithmetic;
    const Mask mask("rows", "{}", std::move(variants), std::move(variant_of), batch, 1);
    gpu()->forward(share(make_plan(p, mask, options)),
                   {q.view(), k.view(), v.view(), o.view(), lse.rows()}, {});
    gpu()->synchronize({});
    return {o.download(), lse.download()};
  }

  /// Query heads' rows that differ from the whole sequence's, over runs of every size.
  int64_t differing(const std::string& arithmetic, int64_t window) const {
    const Outputs all = rows(arithmetic, {0}, shape_.length, window);
    int64_t differing = 0;
    const auto compare = [&](const std::vector<int64_t>& starts, int64_t count) {
      const Outputs part = rows(arithmetic, starts, count, window);
      const size_t row = static_cast<size_t>(shape_.dims.v) * sizeof(uint16_t);
      for (size_t b = 0; b < starts.size(); ++b) {
        for (int64_t i = 0; i < count; ++i) {
          for (int64_t h = 0; h < shape_.q_heads; ++h) {
            const auto at = [&](int64_t batch, int64_t l) {  // in O
              return static_cast<size_t>((batch + l) * shape_.q_heads + h) * row;
            };
            const auto batch = static_cast<int64_t>(b);
            const auto mine = static_cast<size_t>((batch * shape_.q_heads + h) * count + i) * 4;
            const auto whole = static_cast<size_t>(h * shape_.length + starts[b] + i) * 4;
            differing += std::memcmp(&part.o[at(batch * count, i)], &all.o[at(0, starts[b] + i)],
                                     row) != 0 ||
                         std::memcmp(&part.lse[mine], &all.lse[whole], sizeof(float)) != 0;
          }
        }
      }
    };
    const int64_t n = shape_.length;
    for (const int64_t count : {300, 512, 2048}) {
      for (int64_t start = 0; start < n; start += count)
        compare({start}, std::min(count, n - start));
    }
    // Decoding: rows at the edges of tiles and chunks and between them, eight lengths at a time.
    std::vector<int64_t> steps{0, 1, 63, 64, 127, 128, 191, 192, 383, 384, 511, 512, n - 2, n - 1};
    for (int64_t i = 1; i <= 18; ++i) steps.push_back(i * n / 19);
    for (size_t i = 0; i < steps.size(); i += 8) {
      compare({steps.begin() + static_cast<int64_t>(i),
               steps.begin() + static_cast<int64_t>(std::min(i + 8, steps.size()))},
              1);
    }
    compare({steps.back()}, 1);  // alone
    compare({n / 5, 0, n / 2, n / 3}, n / 3);
    return differing;
  }

 private:
  Shape shape_;
  GpuTensor q_, k_, v_;
};

class Rows : public testing::TestWithParam<std::string> {};  // of an arithmetic: sm80 or sm90

TEST_P(Rows, SumsOfNothingArePositiveZeros) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  if (GetParam() == "sm90" && gpu()->arithmetic() != "sm90") GTEST_SKIP() << "no such device";
  for (const HeadDims& dims : GetParam() == "sm90" ? hopper_head_dims() : every_head_dims()) {
    Sequence sequence({dims, 2, 1, 700});
    sequence.make_zeros();
    EXPECT_EQ(sequence.differing(GetParam(), std::numeric_limits<int64_t>::max()), 0)
        << to_string(dims);
  }
}

TEST_P(Rows, EqualAtOnceInChunksAndDecoded) {
  if (!gpu()) GTEST_SKIP() << "no GPU";
  if (GetParam() == "sm90" && gpu()->arithmetic() != "sm90") GTEST_SKIP() << "no such device";
  for (const HeadDims& dims : GetParam() == "sm90" ? hopper_head_dims() : every_head_dims()) {
    for (const Shape& shape :
         {Shape{dims, 32, 8, 700}, Shape{dims, 32, 8, 2900}, Shape{dims, 8, 1, 20000}}) {
      const Sequence sequence(shape);
      for (const int64_t window : {std::numeric_limits<int64_t>::max(), int64_t{600}}) {
        EXPECT_EQ(sequence.differing(GetParam(), window), 0)
            << fmt::format("head dims {}, {}:{} heads, {} tokens, window {}", to_string(dims),
                           shape.q_heads, shape.kv_heads, shape.length, window);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Bits, Rows, testing::Values("sm90", "sm80"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace verbatim::test
