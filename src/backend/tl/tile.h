// Tiles of the interpreter, and what programs do to them, in plain loops of f32: products are added
// 16 at a time, all else one after another, in ascending order, the same on every machine.
#pragma once

#include <cstdint>
#include <vector>

#include "tl/vocabulary.h"
#include "verbatim/tensor.h"

namespace verbatim::tl {

/// Which pairs (query, key) of a visit are visible, row-major.
struct Pairs {
  int64_t cols = 0;
  std::vector<uint8_t> visible;
};

/// Row-major; a tile of one column is one number a row.
struct Tile {
  int64_t rows = 0, cols = 0;
  std::vector<float> data{};
  /// Of scores behind the mask and of what is made from them; products leave hidden pairs out, so
  /// that a NaN which nobody sees reaches nobody. Null: all are visible.
  const Pairs* pairs = nullptr;

  float* row(int64_t r) { return data.data() + r * cols; }
  const float* row(int64_t r) const { return data.data() + r * cols; }
};

/// out = op(a) op(b), or out += ..., op transposing where asked; `scratch` is memory to use.
struct Factors {
  const Tile& a;
  bool a_transposed;
  const Tile& b;
  bool b_transposed;
};
void multiply(const Factors& factors, bool accumulate, Tile& out, std::vector<float>& scratch);

/// out = a (+ - * /) b, where b has a's shape or one number a row; x / 0 = 0. out may be a or b.
void combine(Operation operation, const Tile& a, const Tile& b, Tile& out);
void combine(Operation operation, const Tile& a, float b, Tile& out);

/// S = -inf at hidden pairs.
void hide(const Pairs& pairs, Tile& s);

/// One step of the online softmax (Milakov and Gimelshein 2018): m and l take in the scores, P =
/// exp(S - m), and every tile of `sums` is brought to the new m. out may be s.
void softmax(const Tile& s, Tile& m, Tile& l, const std::vector<Tile*>& sums, Tile& out);
/// P = exp(S - L), 0 at hidden pairs. out may be s.
void probabilities(const Tile& s, const Tile& lse, Tile& out);
/// m + log(l); -inf where l is 0.
void logsumexp(const Tile& m, const Tile& l, Tile& out);

/// Every element rounded to the dtype and back; to e4m3 as P is, kE4m3One times what it is.
void round_to(Dtype dtype, Tile& tile);

/// Rows [begin, begin + count) of head h from a tensor, times its scale, 0 behind them; and to it.
void load(const TensorView& from, int64_t b, int64_t h, int64_t begin, int64_t count, Tile& tile);
void store(const Tile& tile, int64_t count, const TensorView& to, int64_t b, int64_t h,
           int64_t begin);

}  // namespace verbatim::tl
