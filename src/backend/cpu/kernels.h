// Tile operations of the CPU backend, compiled once per instruction set with the same bits.
//
// Every output element is one chain of fused multiply-adds over the depth in ascending order, so
// neither the register blocking nor the vector width of a target enters a result. Tiles live in
// f32 buffers of ours: rows padded to kRowGroup, columns to kLanes, leading dimension ld().
#pragma once

#include <cstdint>
#include <span>

#include "verbatim/tensor.h"

namespace verbatim::cpu {

/// Lanes of the virtual vector. A constant of the contract: horizontal sums depend on it.
inline constexpr int kLanes = 16;
/// Rows that share one extent in a partial tile; every target's register block divides it.
inline constexpr int kRowGroup = 8;

constexpr int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }
/// Leading dimension of a tile of `cols` columns: an odd number of cache lines, so that a column of
/// the tile spreads over all sets of the L1 cache.
constexpr int64_t leading_dim(int64_t cols) {
  return (round_up(cols, kLanes) / kLanes | 1) * kLanes;
}

/// A half-open range of rows or columns of a tile.
struct Extent {
  int32_t begin, end;
};

/// Rows that a later step reads: products fetch them into the L2 cache between their blocks, since
/// the rows of one head lie too far apart for the hardware to guess. Hints only.
struct Upcoming {
  struct Rows {
    const char* next;
    int64_t stride;  // bytes
    int32_t left, bytes;
  };
  static constexpr int kPerBlock = 6;  // rows fetched after each register block
  Rows streams[4];
  int32_t count = 0;

  void push(const void* first, int64_t stride, int64_t rows, int64_t bytes) {
    streams[count++] = {static_cast<const char*>(first), stride, static_cast<int32_t>(rows),
                        static_cast<int32_t>(bytes)};
  }
};

/// C[rows x cols] = (accumulate ? C : 0) + A[rows x depth] B[depth x cols].
/// A(i, k) = a[i * a_row + k * a_depth], one of the two strides is 1; B and C are row-major.
struct Gemm {
  const float* a;
  int64_t a_row, a_depth;
  const float* b;
  int64_t ldb;
  float* c;
  int64_t ldc;
  int32_t rows, cols, depth;
  bool accumulate = false;
  Upcoming* upcoming = nullptr;
  const Extent* cols_of = nullptr;   // per row group: only these columns of C are wanted
  const Extent* depth_of = nullptr;  // per row group: A is zero outside these k
  // When set, products of hidden pairs are skipped, not multiplied by zero: B may hold Inf or NaN.
  const uint16_t* visible = nullptr;  // mask bits of pair (row i, depth k), kLanes per word:
  int64_t visible_row = 0;            // word stride per row (rows are the mask's rows) or ...
  int64_t visible_depth = 0;          // ... per depth (rows are the mask's columns)
};

/// Softmax scalars of one problem, rounded once to f32.
struct ScoreScalars {
  float scale;
  float softcap;  // 0: none
  float inverse_softcap;
  float keep_scale;  // 1 / (1 - dropout)
};

/// Scores of one tile and its mask. `bits` hides pairs, `keep` drops elements of P; null: neither.
struct ScoreTile {
  float* s;
  int64_t ld;
  int32_t rows, cols;
  const uint16_t* bits;
  const uint16_t* keep;
  int64_t strips;  // words per row of `bits` and `keep`
};

/// Running softmax of a query tile: row m holds exp(max) * sum; `factor` is scratch.
struct RowState {
  float* max;
  float* sum;
  float* factor;
};

/// Rows of a caller's tensor.
struct RowsOut {
  void* data;
  Dtype dtype;
  int64_t stride;  // elements between rows
};

struct KernelTable {
  const char* name;

  /// dst[rows x cols] = f32(src), padding zeroed. False when an element is Inf or NaN.
  bool (*load_rows)(const void* src, Dtype dtype, int64_t stride, int32_t rows, int32_t cols,
                    float* dst, int64_t ld);
  /// dst[cols x rows] = src^T; reads and writes whole padded tiles.
  void (*transpose)(const float* src, int64_t ld_src, int32_t rows, int32_t cols, float* dst,
                    int64_t ld_dst);
  void (*gemm)(const Gemm& gemm);

  /// Online softmax (Milakov and Gimelshein 2018; FlashAttention-2, algorithm 1). The tile holds
  /// S^T = K Q^T, one column per query; `hulls` bounds the visible rows of each kRowGroup columns,
  /// null: all. In: Q K^T; out: exp(score - max), dropped elements 0. state.factor[m] is what the
  /// older sums must be multiplied with. Returns whether any factor differs from 1.
  bool (*softmax_forward)(const ScoreTile& tile, const ScoreScalars& scalars, const Extent* hulls,
                          const RowState& state);
  /// x[m][:] *= factor[m].
  void (*scale_rows)(float* x, int64_t ld, int32_t rows, int32_t cols, const float* factor);
  /// Merges a later partial softmax into an earlier one: state and o take exp(max) weights.
  void (*merge_rows)(float* o, int64_t ld, const RowState& state, const float* later_o,
                     int64_t later_ld, const RowState& later, int32_t rows, int32_t cols);

  /// The tile holds S = Q K^T, one row per query, and `dp` holds dO V^T. Out: s = P after dropout
  /// without its scale, dp = dS without the softmax scale: P (dP - delta), through the softcap.
  void (*softmax_backward)(const ScoreTile& tile, float* dp, const ScoreScalars& scalars,
                           const float* lse, const float* delta);
  /// out[m] = sum over cols of a[m][:] * b[m][:], lanes first, then a fixed tree.
  void (*row_dots)(const float* a, const float* b, int64_t ld, int32_t rows, int32_t cols,
                   float* out);

  /// out = dtype((base ? base : 0) + x) * scale; `base` rows are `base_stride` apart and may be
  /// out. A sum of 0 is +0, and a NaN is the same one always.
  void (*add_rows)(const float* x, int64_t ld, int32_t rows, int32_t cols, const float* base,
                   int64_t base_stride, float scale, const RowsOut& out);
};

/// Tables of the instruction sets that were compiled in and that this CPU has, widest first; the
/// portable one is always there.
std::span<const KernelTable* const> available_kernels();
/// The widest table, or the one named by the environment variable VERBATIM_CPU_KERNELS.
const KernelTable& kernels();

namespace avx512 {
extern const KernelTable table;
}
namespace avx2 {
extern const KernelTable table;
}
namespace portable {
extern const KernelTable table;
}

}  // namespace verbatim::cpu
