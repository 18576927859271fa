#include "backend/tl/tile.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/sums.h"
#include "core/dtype.h"

namespace verbatim::tl {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kDepth = 16;  // products that one mma of bf16 adds

float exp_of(float x) { return static_cast<float>(exp_fixed(x)); }

void transpose(const Tile& tile, std::vector<float>& out) {
  out.resize(tile.data.size());
  for (int64_t r = 0; r < tile.rows; ++r)
    for (int64_t c = 0; c < tile.cols; ++c) out[c * tile.rows + r] = tile.row(r)[c];
}

template <class F>
void apply(const Tile& a, const Tile* b, Tile& out, F f) {
  const bool by_row = b && b->cols == 1;
  for (int64_t r = 0; r < a.rows; ++r)
    for (int64_t c = 0; c < a.cols; ++c)
      out.row(r)[c] = f(a.row(r)[c], b ? b->row(r)[by_row ? 0 : c] : 0.0f);
}

template <class F>
void dispatch(Operation operation, F f) {
  switch (operation) {
    case Operation::add:
      return f([](float x, float y) { return x + y; });
    case Operation::subtract:
      return f([](float x, float y) { return x - y; });
    case Operation::multiply:
      return f([](float x, float y) { return x * y; });
    default:
      return f([](float x, float y) { return y == 0 ? 0 : x / y; });
  }
}

}  // namespace

void multiply(const Factors& factors, bool accumulate, Tile& out, std::vector<float>& scratch) {
  const auto& [a, a_transposed, b, b_transposed] = factors;
  const int64_t depth = a_transposed ? a.rows : a.cols;
  const float* rows_of_b = b.data.data();
  if (b_transposed) {
    transpose(b, scratch);
    rows_of_b = scratch.data();
  }
  if (!accumulate) std::ranges::fill(out.data, 0.0f);
  std::vector<float> part(static_cast<size_t>(out.cols));
  for (int64_t i = 0; i < out.rows; ++i) {
    float* sum = out.row(i);
    // As many products as an instruction adds at once, then these: one long sum would lose digits.
    for (int64_t begin = 0; begin < depth; begin += kDepth) {
      std::ranges::fill(part, 0.0f);
      for (int64_t k = begin; k < std::min(depth, begin + kDepth); ++k) {
        const int64_t at = a_transposed ? k * a.cols + i : i * a.cols + k;
        if (a.pairs && !a.pairs->visible[at]) continue;
        const float x = a.data[at];
        const float* y = rows_of_b + k * out.cols;
        for (int64_t j = 0; j < out.cols; ++j) part[j] += x * y[j];
      }
      for (int64_t j = 0; j < out.cols; ++j) sum[j] += part[j];
    }
  }
  out.pairs = nullptr;
}

void combine(Operation operation, const Tile& a, const Tile& b, Tile& out) {
  dispatch(operation, [&](auto f) { apply(a, &b, out, f); });
  out.pairs = a.pairs ? a.pairs : b.pairs;
}

void combine(Operation operation, const Tile& a, float b, Tile& out) {
  dispatch(operation,
           [&](auto f) { apply(a, nullptr, out, [&](float x, float) { return f(x, b); }); });
  out.pairs = a.pairs;
}

void hide(const Pairs& pairs, Tile& s) {
  for (size_t i = 0; i < s.data.size(); ++i)
    if (!pairs.visible[i]) s.data[i] = -kInfinity;
  s.pairs = &pairs;
}

void softmax(const Tile& s, Tile& m, Tile& l, const std::vector<Tile*>& sums, Tile& out) {
  for (int64_t r = 0; r < s.rows; ++r) {
    float& maximum = m.data[r];
    const float before = maximum;
    for (int64_t c = 0; c < s.cols; ++c) {
      const float x = s.row(r)[c];
      if (x > maximum || std::isnan(x)) maximum = x;  // a NaN stays
    }
    const bool empty = maximum == -kInfinity;  // no key so far
    const float factor = empty ? 1 : exp_of(before - maximum);
    float sum = 0;
    for (int64_t c = 0; c < s.cols; ++c) {
      const float p = empty ? 0 : exp_of(s.row(r)[c] - maximum);
      out.row(r)[c] = p;
      sum += p;
    }
    l.data[r] = l.data[r] * factor + sum;
    for (Tile* tile : sums)
      for (int64_t c = 0; c < tile->cols; ++c) tile->row(r)[c] *= factor;
  }
  out.pairs = s.pairs;
}

void probabilities(const Tile& s, const Tile& lse, Tile& out) {
  for (int64_t r = 0; r < s.rows; ++r)
    for (int64_t c = 0; c < s.cols; ++c) {
      const float x = s.row(r)[c];
      out.row(r)[c] = x == -kInfinity ? 0 : exp_of(x - lse.data[r]);
    }
  out.pairs = s.pairs;
}

void logsumexp(const Tile& m, const Tile& l, Tile& out) {
  for (int64_t r = 0; r < m.rows; ++r) {
    const float sum = l.data[r];
    if (sum == 0) {
      out.data[r] = -kInfinity;
    } else if (sum > 0 && std::isfinite(sum)) {
      out.data[r] = static_cast<float>(static_cast<double>(m.data[r]) + log_fixed(sum));
    } else {
      out.data[r] = sum > 0 ? sum : std::numeric_limits<float>::quiet_NaN();
    }
  }
}

void round_to(Dtype dtype, Tile& tile) {
  const float one = dtype == Dtype::e4m3 ? kE4m3One : 1;
  dispatch_dtype(dtype, [&](auto element) {
    for (float& x : tile.data) x = to_f32(from_f32<decltype(element)>(one * x)) / one;
  });
}

void load(const TensorView& from, int64_t b, int64_t h, int64_t begin, int64_t count, Tile& tile) {
  std::ranges::fill(tile.data, 0.0f);
  const float scale = from.scales ? from.scales[h] : 1;
  dispatch_dtype(from.dtype, [&](auto element) {
    for (int64_t r = 0; r < count; ++r) {
      const auto* row = from.row<const decltype(element)>(b, begin + r, h);
      for (int64_t c = 0; c < tile.cols; ++c) tile.row(r)[c] = scale * to_f32(row[c]);
    }
  });
  tile.pairs = nullptr;
}

void store(const Tile& tile, int64_t count, const TensorView& to, int64_t b, int64_t h,
           int64_t begin) {
  dispatch_dtype(to.dtype, [&](auto element) {
    using Element = decltype(element);
    for (int64_t r = 0; r < count; ++r) {
      auto* row = to.row<Element>(b, begin + r, h);
      for (int64_t c = 0; c < tile.cols; ++c) row[c] = from_f32<Element>(tile.row(r)[c]);
    }
  });
}

}  // namespace verbatim::tl
