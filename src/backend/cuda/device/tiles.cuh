// What kernels translated from TL are made of (docs/tl.md): tiles in shared memory and registers,
// copies, products and the online softmax, on CuTe. All threads of a CTA call these together.
#pragma once

#include <cutlass/numeric_conversion.h>
#include <cutlass/numeric_types.h>

#include <bit>
#include <cute/tensor.hpp>
#include <numeric>

#include "backend/cuda/device/params.h"
#include "backend/cuda/device/score.cuh"
#include "backend/cuda/device/steps.cuh"

namespace verbatim::cuda::tiles {

using namespace cute;

// ---- What a GPU has: its matrix instruction, and how tiles come from global memory.

/// mma.sync m16n8k8 in f16, and copies through registers, which have ended when they return.
struct Sm75 {
  template <class Element>
  using Atom = MMA_Atom<SM75_16x8x8_F32F16F16F32_TN>;
  template <class Element>
  using Copy = Copy_Atom<UniversalCopy<uint128_t>, Element>;

  /// Copies rows m of this thread that `exist(m)`; the others become 0. All loads come first.
  template <class Chunks, class From, class To, class Exist>
  __device__ static void copy_rows(const Chunks& chunks, const From& from, To& to, Exist exist) {
    auto rows = make_fragment_like(to);
    clear(rows);
    CUTE_UNROLL
    for (int m = 0; m < size<1>(to); ++m)
      if (exist(m)) copy(chunks, from(_, m, _), rows(_, m, _));
    copy(chunks, rows, to);
  }
};

/// mma.sync m16n8k16 and cp.async.
struct Sm80 {
  template <class Element>
  using Atom = MMA_Atom<conditional_t<is_same_v<Element, half_t>, SM80_16x8x16_F32F16F16F32_TN,
                                      SM80_16x8x16_F32BF16BF16F32_TN>>;
  template <class Element>
  using Copy = Copy_Atom<SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<uint128_t>, Element>;

  template <class Chunks, class From, class To, class Exist>
  __device__ static void copy_rows(const Chunks& chunks, const From& from, To& to, Exist exist) {
    CUTE_UNROLL
    for (int m = 0; m < size<1>(to); ++m) copy(chunks.with(exist(m)), from(_, m, _), to(_, m, _));
  }
};

/// Products of tiles by kAlongRows x kAlongColumns warps, each with rows and columns of its own.
template <class Gpu, class Element, int kAlongRows, int kAlongColumns = 1>
using Product = TiledMMA<typename Gpu::template Atom<Element>,
                         Layout<Shape<Int<kAlongRows>, Int<kAlongColumns>, _1>>,
                         Tile<Int<16 * kAlongRows>, Int<16 * kAlongColumns>, _16>>;

/// threadIdx.x, read where it is needed: what is made of it would else be kept in registers from
/// the start of the kernel to its end.
__device__ inline int thread_here() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

// ---- Shared memory.

/// kRows x kCols elements, row-major; the 16-byte chunks of a row are permuted by its number, so
/// that ldmatrix meets no bank twice in either direction.
template <class Element, int kRows_, int kCols_>
struct SharedTile {
  static constexpr int kRows = kRows_, kCols = kCols_;
  static constexpr int kChunk = 16 / sizeof(Element);
  static constexpr int kChunks = kCols % (8 * kChunk) == 0   ? 8
                                 : kCols % (4 * kChunk) == 0 ? 4
                                 : kCols % (2 * kChunk) == 0 ? 2
                                                             : 1;
  static constexpr int kWide = kChunks * kChunk;
  static_assert(kCols % kWide == 0 && kRows % 8 == 0);
  using Permuted = decltype(composition(
      Swizzle<std::bit_width(unsigned{kChunks}) - 1, std::bit_width(unsigned{kChunk}) - 1, 3>{},
      Layout<Shape<_8, Int<kWide>>, Stride<Int<kWide>, _1>>{}));
  alignas(128) Element data[kRows * kCols];

  /// (kRows, kCols)
  __device__ auto rows() {
    return make_tensor(make_smem_ptr(data),
                       tile_to_shape(Permuted{}, Shape<Int<kRows>, Int<kCols>>{}));
  }
  /// (kCols, kRows)
  __device__ auto transposed() {
    const auto tile = rows();
    return make_tensor(
        tile.data(), composition(tile.layout(),
                                 Layout<Shape<Int<kCols>, Int<kRows>>, Stride<Int<kRows>, _1>>{}));
  }
};

/// How the 16-byte chunks of a tile are shared by the first kUsed of kThreads threads: a row by
/// kChunks of them, as many rows at once as divide the tile.
template <class Tile, int kThreads>
struct Chunks {
  static constexpr int kAcross = Tile::kChunks;
  static constexpr int kAtOnce = std::gcd(Tile::kRows, kThreads / kAcross);
  static constexpr int kUsed = kAtOnce * kAcross;
  using Extent = Shape<Int<Tile::kRows>, Int<Tile::kCols>>;

  template <class Atom>
  __device__ static auto copy() {
    return make_tiled_copy(Atom{},
                           Layout<Shape<Int<kAtOnce>, Int<kAcross>>, Stride<Int<kAcross>, _1>>{},
                           Layout<Shape<_1, Int<Tile::kChunk>>>{});
  }
};

/// Starts copying the first `used` rows at `source`, `stride` elements apart; the others become 0.
template <class Gpu, int kThreads, class Element, int kRows, int kCols>
__device__ void copy_in(SharedTile<Element, kRows, kCols>& tile, const Element* source,
                        int64_t stride, int used) {
  using Shared = Chunks<SharedTile<Element, kRows, kCols>, kThreads>;
  using Extent = typename Shared::Extent;
  const int index = thread_here();
  if (index >= Shared::kUsed) return;
  const auto chunks = Shared::template copy<typename Gpu::template Copy<Element>>();
  const auto thread = chunks.get_slice(index);
  const auto from = thread.partition_S(
      make_tensor(make_gmem_ptr(source), make_layout(Extent{}, make_stride(stride, _1{}))));
  const auto place = thread.partition_S(make_identity_tensor(Extent{}));
  auto to = thread.partition_D(tile.rows());  // (8, rows, columns)
  Gpu::copy_rows(chunks, from, to, [&](int m) { return get<0>(place(0, m, 0)) < used; });
}

/// Whether what this thread copied to a tile holds a NaN or an infinity.
template <class Gpu, int kThreads, class Element, int kRows, int kCols>
__device__ bool nonfinite(SharedTile<Element, kRows, kCols>& tile) {
  // Of one byte: e4m3, which has one NaN of either sign.
  constexpr uint32_t kExponent = sizeof(Element) == 1         ? 0x7f7f7f7fu
                                 : is_same_v<Element, half_t> ? 0x7c007c00u
                                                              : 0x7f807f80u;
  using Shared = Chunks<SharedTile<Element, kRows, kCols>, kThreads>;
  const int index = thread_here();
  if (index >= Shared::kUsed) return false;
  const auto thread =
      Shared::template copy<typename Gpu::template Copy<Element>>().get_slice(index);
  const auto copied = recast<const uint32_t>(thread.partition_D(tile.rows()));
  bool found = false;
  CUTE_UNROLL
  for (int i = 0; i < size(copied); ++i) {
    const uint32_t exponents = copied(i) & kExponent;
    if constexpr (sizeof(Element) == 1) {
      found |= (exponents + 0x01010101u & 0x80808080u) != 0;
    } else {
      found |= (exponents & 0xffff) == (kExponent & 0xffff) || exponents >> 16 == kExponent >> 16;
    }
  }
  return found;
}

// ---- Products.

/// A factor in shared memory whose rows lie along the summed axis, as they are read: Q and K^T.
template <class Tile>
struct AlongK {
  using Copy = SM75_U32x4_LDSM_N;
  Tile& tile;
  __device__ auto view() const { return tile.rows(); }
};
template <class Tile>
AlongK(Tile&) -> AlongK<Tile>;
/// One whose rows lie across it: V.
template <class Tile>
struct AcrossK {
  using Copy = SM75_U16x8_LDSM_T;
  Tile& tile;
  __device__ auto view() const { return tile.transposed(); }
};
template <class Tile>
AcrossK(Tile&) -> AcrossK<Tile>;

/// This thread's part of a product: ((2, 2), M, N), f32.
template <int kRows, int kCols, class Mma>
__device__ auto registers(const Mma& mma) {
  return partition_fragment_C(mma, Shape<Int<kRows>, Int<kCols>>{});
}

/// sums += a b; `fetch_a(k)` fills a's fragments of step k, as b's come from shared memory: part
/// after part, the next while one is multiplied.
template <class Mma, class Sums, class A, class FetchA, class B>
__device__ void multiply_steps(const Mma& mma, Sums& sums, const A& a, FetchA fetch_a,
                               const B& factor) {
  const auto tile = factor.view();  // (N, K)
  using Element = typename decltype(tile)::value_type;
  auto b = make_tensor<Element>(partition_shape_B(mma, shape(tile)));
  const auto load = make_tiled_copy_B(Copy_Atom<typename B::Copy, Element>{}, mma);
  const auto thread = load.get_slice(threadIdx.x);
  const auto from = thread.partition_S(tile);
  auto to = thread.retile_D(b);
  // A part is what four instructions multiply: more would take more registers.
  constexpr int kSteps = size<2>(decltype(to){}), kBlocks = size<1>(decltype(to){});
  constexpr int kPart = size<1>(Sums{}) == 1 && kBlocks % 2 == 0 ? 2 : 1, kParts = kBlocks / kPart;
  constexpr int kColumns = size<1>(typename decltype(b)::layout_type{}) / kBlocks,
                kDepth = size<2>(typename decltype(b)::layout_type{}) / kSteps;
  const auto fetch = [&](auto part) {
    constexpr int k = part() / kParts, n = part() % kParts * kPart;
    if constexpr (n == 0) fetch_a(Int<k>{});
    CUTE_UNROLL
    for (int i = n; i < n + kPart; ++i) copy(load, from(_, i, k), to(_, i, k));
  };
  fetch(_0{});
  for_each(make_int_sequence<kSteps * kParts>{}, [&](auto part) {
    if constexpr (part() + 1 < kSteps * kParts) fetch(Int<part() + 1>{});
    constexpr int k = part() / kParts, n = part() % kParts * kPart;
    CUTE_UNROLL
    for (int d = k * kDepth; d < (k + 1) * kDepth; ++d) CUTE_UNROLL
    for (int j = n * kColumns; j < (n + kPart) * kColumns; ++j) CUTE_UNROLL
    for (int m = 0; m < size<1>(sums); ++m) gemm(mma, a(_, m, d), b(_, j, d), sums(_, m, j));
  });
}

/// sums += a b, both from shared memory.
template <class Mma, class Sums, class A, class B>
__device__ void multiply(const Mma& mma, Sums& sums, const A& factor, const B& other) {
  const auto tile = factor.view();  // (M, K)
  using Element = typename decltype(tile)::value_type;
  auto a = make_tensor<Element>(partition_shape_A(mma, shape(tile)));
  const auto load = make_tiled_copy_A(Copy_Atom<typename A::Copy, Element>{}, mma);
  const auto thread = load.get_slice(threadIdx.x);
  const auto from = thread.partition_S(tile);
  auto to = thread.retile_D(a);
  multiply_steps(
      mma, sums, a, [&](auto k) { copy(load, from(_, _, k), to(_, _, k)); }, other);
}

/// sums += a b, a from registers: what factor_of() or factor_of_weights() made.
template <class Mma, class Sums, class Element, class Layout, class B>
__device__ void multiply(const Mma& mma, Sums& sums, const Tensor<Element, Layout>& a,
                         const B& other) {
  multiply_steps(
      mma, sums, a, [](auto) {}, other);
}

// ---- Registers. Four lanes (a quad) hold a row of a product; a thread holds parts of kRows rows.

/// A product ((2, 2), M, N) as (rows, columns) of this thread: ((2, M), (2, N)). One of wgmma,
/// whose instruction has blocks of 8 columns, is ((2, 2, blocks), M, N).
template <class Layout>
__device__ auto rows_and_columns(const Layout& product) {
  const auto rows = make_layout(get<0, 1>(product), get<1>(product));
  if constexpr (rank<0>(Layout{}) == 3) {
    return make_layout(rows, make_layout(get<0, 0>(product), get<0, 2>(product), get<2>(product)));
  } else {
    return make_layout(rows, make_layout(get<0, 0>(product), get<2>(product)));
  }
}
template <class Sums>
__device__ auto by_rows(Sums& sums) {
  return make_tensor(sums.data(), rows_and_columns(sums.layout()));
}

/// Row and column in a kRows x kCols tile of each element that by_rows() has.
template <int kRows, int kCols, class Mma>
__device__ auto places(const Mma& mma) {
  const auto product = mma.get_slice(thread_here())
                           .partition_C(make_identity_tensor(Shape<Int<kRows>, Int<kCols>>{}));
  return make_tensor(product.data(), rows_and_columns(product.layout()));
}

/// Columns that all warps of a product make at once.
template <class Mma>
inline constexpr int kAcross = decltype(tile_size<1>(Mma{}))::value;
/// From one pair of a thread's columns to the next. Warps take blocks of 8 in turns; in wgmma those
/// of four warps lie side by side.
template <class Mma>
inline constexpr int kApart = size<0>(typename Mma::ThrLayoutVMNK{}) > 32
                                  ? 8
                                  : 8 * size<2>(typename Mma::ThrLayoutVMNK{});

/// One number a row of this thread's part of products with kRows rows: two of what is made at once.
template <int kRows, class Mma>
__device__ auto numbers(const Mma&) {
  return make_tensor<float>(Int<2 * kRows / decltype(tile_size<0>(Mma{}))::value>{});
}

/// result = f(a, b) of every element; b is a tile, or one number a row.
template <class Result, class A, class B, class F>
__device__ void combine(Result& result, const A& a, const B& b, F f) {
  auto to = by_rows(result);
  const auto from = by_rows(a);
  CUTE_UNROLL
  for (int i = 0; i < size<0>(to); ++i) {
    CUTE_UNROLL
    for (int j = 0; j < size<1>(to); ++j) {
      if constexpr (rank(typename B::layout_type{}) == 1) {
        to(i, j) = f(from(i, j), b(i));
      } else {
        to(i, j) = f(from(i, j), by_rows(b)(i, j));
      }
    }
  }
}

/// result = f(a) of every element, or number.
template <class Result, class A, class F>
__device__ void apply(Result& result, const A& a, F f) {
  CUTE_UNROLL
  for (int i = 0; i < size(result); ++i) result(i) = f(a(i));
}

/// f(what the lanes of a quad have), for each.
template <class F>
__device__ float over_quad(float x, F f) {
  x = f(x, __shfl_xor_sync(~0u, x, 1));
  return f(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ inline float exp2_approximately(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// scores = `hidden` but in the columns of a row that `show_row(row, show)` shows, by calls of
/// show(begin, end).
template <int kRows, int kCols, class Mma, class Scores, class ShowRow>
__device__ void show_only(const Mma& mma, Scores& scores, float hidden, ShowRow show_row) {
  auto values = by_rows(scores);
  const auto at = places<kRows, kCols>(mma);
  constexpr int kColumns = size<1>(decltype(values){}) / 2;  // pairs of a row
  constexpr int kStep = kApart<Mma>;
  static_assert(kColumns <= 32);
  // Bit n: the first of pair n is in front of column `end`.
  const auto in_front = [](int32_t first, int32_t end) {
    const int32_t count = min(max((end - first + kStep - 1) / kStep, 0), kColumns);
    return static_cast<uint32_t>((uint64_t{1} << count) - 1);
  };
  CUTE_UNROLL
  for (int i = 0; i < size<0>(values); ++i) {
    const int32_t row = get<0>(at(i, 0)), column = get<1>(at(i, 0));
    uint32_t seen[2] = {0, 0};
    const auto show = [&](int32_t begin, int32_t end) {
      CUTE_UNROLL
      for (int j = 0; j < 2; ++j)
        seen[j] |= in_front(column + j, end) & ~in_front(column + j, begin);
    };
    show_row(row, show);
    CUTE_UNROLL
    for (int j = 0; j < size<1>(values); ++j)
      if (!(seen[j % 2] >> j / 2 & 1)) values(i, j) = hidden;
  }
}

/// scores = `hidden` for pairs that the mask hides, and behind the end of a tile.
template <int kRows, int kCols, class Mma, class Scores>
__device__ void hide(const Mma& mma, Scores& scores, const OrderView& order, const Run& run,
                     const Block& block, float hidden = -INFINITY) {
  show_only<kRows, kCols>(mma, scores, hidden, [&](int32_t row, auto show) {
    if (run.slice_count == 0) show(0, block.k_rows);
    for (int32_t s = 0; s < run.slice_count; ++s) {
      const Slice& slice = order.slices[order.slice_ids[run.slice_begin + s]];
      const Columns columns = seen_columns(slice, block, row);
      show(columns.begin, columns.end);
    }
  });
}

/// Row i of what a thread holds of a tile, times `factor`.
template <class Tile>
__device__ __forceinline__ void rescale_row(Tile& tile, int i, float factor) {
  auto row = by_rows(tile);
  CUTE_UNROLL
  for (int j = 0; j < size<1>(row); ++j) row(i, j) *= factor;
}

/// A step of the online softmax: maxima and sums take in the scores, which become
/// exp(unit * (score - maximum)), and what is summed already is brought to new maxima. unit:
/// log2(e) times a factor of the scores that is yet to come. A lane's sums are those of its own
/// columns until complete().
template <class Scores, class Numbers, class... Rescaled>
__device__ __forceinline__ void softmax(Scores& scores, Numbers& maxima, Numbers& sums, float unit,
                                        Rescaled&... rescaled) {
  auto values = by_rows(scores);
  CUTE_UNROLL
  for (int i = 0; i < size<0>(values); ++i) {
    float maximum = maxima(i);
    CUTE_UNROLL
    for (int j = 0; j < size<1>(values); ++j) maximum = fmaxf(maximum, values(i, j));
    maximum = over_quad(maximum, [](float x, float y) { return fmaxf(x, y); });
    const float base = maximum == -INFINITY ? 0 : maximum * unit;
    // Not fused: while the maximum stays this is 1, not the rounding of `base` once a visit.
    const float decay = exp2_approximately(maxima(i) * unit - base);
    maxima(i) = maximum;
    // Of the visit alone: one long sum would lose digits with every visit. Of even and odd columns:
    // one would wait for its own latency.
    float sum[2] = {0, 0};
    CUTE_UNROLL
    for (int j = 0; j < size<1>(values); ++j) {
      values(i, j) = exp2_approximately(fmaf(values(i, j), unit, -base));
      sum[j % 2] += values(i, j);
    }
    sums(i) = fmaf(sums(i), decay, sum[0] + sum[1]);
    if (__all_sync(~0u, decay == 1)) continue;
    (rescale_row(rescaled, i, decay), ...);
  }
}

/// What a lane may add to the sum of a row in one visit before the row takes another base: P up to
/// this are numbers of f16, too.
constexpr float kLargestSum = 1024;

/// A step of the online softmax, rounded to Element for the product behind it: `words` are pairs of
/// exp(unit * (score - base)), in the order of the scores' registers. A row's base is the maximum
/// of its first visit with a key; where exponentials outgrow kLargestSum, or are no numbers, that
/// of the visit. So most visits look for no maximum, and the scores stay until it is known that
/// they need none. A row decides alone: no bit depends on others.
template <class Element, class Words, class Scores, class Numbers, class... Rescaled>
__device__ __forceinline__ void weigh(Words&& words, const Scores& scores, Numbers& bases,
                                      Numbers& sums, float unit, Rescaled&... rescaled) {
  const auto values = by_rows(scores);
  const auto move_base = [&](int i, float added) {
    const auto larger = [](float x, float y) { return fmaxf(x, y); };
    const bool begins = bases(i) == -INFINITY;
    float maximum = -INFINITY;
    CUTE_UNROLL
    for (int j = 0; j < size<1>(values); ++j) maximum = fmaxf(maximum, values(i, j));
    maximum = over_quad(maximum, larger);
    if (over_quad(begins || !(added <= kLargestSum), larger) == 0) maximum = bases(i);
    const float decay = begins ? 1 : exp2_approximately((bases(i) - maximum) * unit);
    bases(i) = maximum;
    sums(i) *= decay;
    (rescale_row(rescaled, i, decay), ...);
  };
  CUTE_UNROLL
  for (int i = 0; i < size<0>(values); i += 2) {  // the rows of an instruction, in a thread
    float added[2] = {0, 0};
    bool moves = !__all_sync(~0u, bases(i) != -INFINITY && bases(i + 1) != -INFINITY);
    CUTE_NO_UNROLL
    for (bool again = false;; again = moves = true) {
      if (moves) [[unlikely]]
        move_base(i, added[0]), move_base(i + 1, added[1]);
      CUTE_UNROLL
      for (int r = 0; r < 2; ++r) {
        const float base = bases(i + r) == -INFINITY ? 0 : bases(i + r) * unit;
        float sum[2] = {0, 0};  // of even and odd columns: one would wait for its own latency
        CUTE_UNROLL
        for (int j = 0; j < size<1>(values); j += 2) {
          const auto at = [&](int column) {
            return exp2_approximately(fmaf(values(i + r, column), unit, -base));
          };
          const cutlass::Array<float, 2> pair{at(j), at(j + 1)};
          sum[0] += pair[0], sum[1] += pair[1];
          words(values.layout()(i + r, j) / 2) = std::bit_cast<uint32_t>(
              cutlass::NumericArrayConverter<Element, float, 2>::convert(pair));
        }
        added[r] = sum[0] + sum[1];
      }
      if (again || __all_sync(~0u, added[0] <= kLargestSum && added[1] <= kLargestSum)) break;
    }
    sums(i) += added[0], sums(i + 1) += added[1];
  }
}

/// scores = exp(unit * score - LSE), from the LSE of whole rows; 0 in rows without a key.
template <class Scores, class Numbers>
__device__ void probabilities(Scores& scores, const Numbers& lse, float unit) {
  auto values = by_rows(scores);
  CUTE_UNROLL
  for (int i = 0; i < size<0>(values); ++i) {
    const float base = lse(i) == -INFINITY ? INFINITY : lse(i) * kLog2e;
    CUTE_UNROLL
    for (int j = 0; j < size<1>(values); ++j)
      values(i, j) = exp2_approximately(fmaf(values(i, j), unit, -base));
  }
}

/// Sums of whole rows, from those of the lanes.
template <class Numbers>
__device__ void complete(Numbers& sums) {
  CUTE_UNROLL
  for (int i = 0; i < size(sums); ++i)
    sums(i) = over_quad(sums(i), [](float x, float y) { return x + y; });
}

/// log of the sum of exp(unit / log2(e) * score); -inf of no score.
template <class Numbers>
__device__ void logsumexp(const Numbers& maxima, const Numbers& sums, float unit, Numbers& result) {
  CUTE_UNROLL
  for (int i = 0; i < size(result); ++i)
    result(i) = sums(i) == 0 ? -INFINITY : fmaf(maxima(i), unit / kLog2e, logf(sums(i)));
}

/// 1 / x, and 0 where x is 0: a row without a key.
template <class Numbers>
__device__ auto inverse(const Numbers& numbers) {
  auto result = make_fragment_like(numbers);
  apply(result, numbers, [](float x) { return x == 0 ? 0 : 1 / x; });
  return result;
}

/// A product rounded to Element.
template <class Element, class Sums>
__device__ auto rounded(const Sums& sums) {
  auto result = make_tensor<Element>(sums.layout());
  const auto from = recast<const cutlass::Array<float, 2>>(sums);
  auto to = recast<cutlass::Array<Element, 2>>(result);
  CUTE_UNROLL
  for (int i = 0; i < size(from); ++i)
    to(i) = cutlass::NumericArrayConverter<Element, float, 2>::convert(from(i));
  return result;
}

/// A rounded product (MMA_C) of `layout` as the first factor of the next (MMA_A), ((2, 2, 2), M,
/// K): the registers stay where they are, and those of 16 columns, or as many as the instruction is
/// deep, make a fragment.
template <class Element, class Mma, class Layout>
__device__ auto factor_of_words(const Mma&, const uint32_t* words, const Layout& layout) {
  constexpr int kBlocks = size<2>(typename Mma::AtomShape_MNK{}) / 8;  // of 8 columns
  const auto split = logical_divide(layout, Shape<X, X, Int<kBlocks>>{});
  const auto fragments =
      make_tensor(reinterpret_cast<const Element*>(words),
                  make_layout(make_layout(get<0, 0>(split), get<0, 1>(split), get<2, 0>(split)),
                              get<1>(split), get<2, 1>(split)));
  auto factor = make_tensor<Element>(shape(fragments));  // each fragment in registers side by side
  copy(recast<const uint32_t>(fragments), recast<uint32_t>(factor));
  return factor;
}
template <class Element, class Mma, class Sums>
__device__ auto factor_of(const Mma& mma, const Sums& sums) {
  const auto result = rounded<Element>(sums);
  return factor_of_words<Element>(mma, recast<const uint32_t>(result).data(), sums.layout());
}
/// The same of what weigh() makes of scores.
template <class Element, class Mma, class Scores, class... Others>
__device__ auto factor_of_weights(const Mma& mma, const Scores& scores, Others&&... others) {
  auto words = make_tensor<uint32_t>(Int<size(Scores{}) / 2>{});
  weigh<Element>(words, scores, others...);
  return factor_of_words<Element>(mma, words.data(), scores.layout());
}

/// multiply() by a tile that holds NaN or infinities: what a zero of `a`, a factor as above,
/// meets adds nothing, so that they reach only the rows that see them. Of e4m3 a zero is +0.
template <int kRows, class Mma, class Sums, class Factor, class Tile>
__device__ void multiply_carefully(const Mma& mma, Sums& sums, const Factor& a, Tile& factor) {
  constexpr bool kMarked = sizeof(typename Factor::value_type) == 1;
  // Elements are counted through, so they lie in memory: in a copy that the compiler does not see
  // through, or it would keep `a` there.
  auto copied = make_fragment_like(a);
  auto words = recast<uint32_t>(copied);
  const auto from = recast<const uint32_t>(a);
  CUTE_UNROLL
  for (int i = 0; i < size(words); ++i)
    asm volatile("mov.b32 %0, %1;" : "=r"(words(i)) : "r"(from(i)));
  const auto fragments = copied.layout();
  const auto left = make_tensor(  // (rows, keys) of this thread
      copied.data(),
      make_layout(make_layout(get<0, 1>(fragments), get<1>(fragments)),
                  make_layout(get<0, 0>(fragments), get<0, 2>(fragments), get<2>(fragments))));
  auto result = by_rows(sums);
  const auto right = factor.rows();  // (keys, columns)
  const auto at = places<kRows, decltype(size<1>(right))::value>(mma);
  const int quad = thread_here() % 32 / 4 * 4;
  CUTE_NO_UNROLL
  for (int k = 0; k < size<0>(right); ++k) {
    // Column k lies in pair k / 8 of lane k % 8 / 2 of the quad.
    float x[size<0>(decltype(result){})];
    CUTE_UNROLL
    for (int i = 0; i < size<0>(result); ++i)
      x[i] = __shfl_sync(~0u, static_cast<float>(left(i, k / 8 * 2 + k % 2)), quad + k % 8 / 2);
    CUTE_UNROLL
    for (int j = 0; j < size<1>(result); ++j) {
      const auto y = static_cast<float>(right(k, get<1>(at(0, j))));
      CUTE_UNROLL
      for (int i = 0; i < size<0>(result); ++i)
        if (kMarked ? __float_as_uint(x[i]) != 0 : x[i] != 0)
          result(i, j) = fmaf(x[i], y, result(i, j));
    }
  }
}

/// multiply() of factors in shared memory, of which the second holds NaN or infinities: as above.
template <int kRows, int kCols, class Mma, class Sums, class A, class B>
__device__ void multiply_carefully(const Mma& mma, Sums& sums, const A& factor, const B& other) {
  const auto left = factor.view();  // (M, K)
  const auto right = other.view();  // (N, K)
  auto result = by_rows(sums);
  const auto at = places<kRows, kCols>(mma);
  CUTE_NO_UNROLL
  for (int k = 0; k < size<1>(left); ++k) {
    float x[size<0>(decltype(result){})];
    CUTE_UNROLL
    for (int i = 0; i < size<0>(result); ++i) x[i] = static_cast<float>(left(get<0>(at(i, 0)), k));
    CUTE_UNROLL
    for (int j = 0; j < size<1>(result); ++j) {
      const auto y = static_cast<float>(right(get<1>(at(0, j)), k));
      CUTE_UNROLL
      for (int i = 0; i < size<0>(result); ++i)
        if (x[i] != 0) result(i, j) = fmaf(x[i], y, result(i, j));
    }
  }
}

// ---- Between registers and memory.

/// tile = a product, rounded.
template <class Mma, class Sums, class Element, int kRows, int kCols>
__device__ void put(const Mma& mma, const Sums& sums, SharedTile<Element, kRows, kCols>& tile) {
  const auto copies = make_tiled_copy_C(Copy_Atom<UniversalCopy<uint32_t>, Element>{}, mma);
  const auto mine = copies.get_slice(thread_here());
  const auto result = rounded<Element>(sums);
  auto to = mine.partition_D(tile.rows());
  copy(copies, mine.retile_S(result), to);
}

/// One number a row; `behind` behind the first `rows`.
template <int kRows, class Mma, class Numbers>
__device__ void copy_in(const Mma& mma, Numbers& numbers, const float* source, int rows,
                        float behind) {
  const auto at = places<kRows, kAcross<Mma>>(mma);
  CUTE_UNROLL
  for (int i = 0; i < size(numbers); ++i) {
    const int row = get<0>(at(i, 0));
    numbers(i) = row < rows ? source[row] : behind;
  }
}

/// Writes the first `rows` rows of a product at `target`, `stride` elements apart, by way of
/// `tile`.
template <int kThreads, class Mma, class Sums, class Element, int kRows, int kCols>
__device__ void copy_out(const Mma& mma, const Sums& sums, SharedTile<Element, kRows, kCols>& tile,
                         Element* target, int64_t stride, int rows) {
  __syncthreads();  // nobody reads what lay here before
  put(mma, sums, tile);
  __syncthreads();
  using Shared = Chunks<SharedTile<Element, kRows, kCols>, kThreads>;
  using Extent = typename Shared::Extent;
  const int index = thread_here();
  if (index >= Shared::kUsed) return;
  const auto chunks = Shared::template copy<Copy_Atom<UniversalCopy<uint128_t>, Element>>();
  const auto thread = chunks.get_slice(index);
  const auto place = thread.partition_S(make_identity_tensor(Extent{}));
  const auto from = thread.partition_S(tile.rows());
  auto to = thread.partition_D(
      make_tensor(make_gmem_ptr(target), make_layout(Extent{}, make_stride(stride, _1{}))));
  CUTE_UNROLL
  for (int m = 0; m < size<1>(to); ++m)
    if (get<0>(place(0, m, 0)) < rows) copy(chunks, from(_, m, _), to(_, m, _));
}

/// Writes one number a row, `apart` from the next.
template <int kRows, class Mma, class Numbers>
__device__ void copy_out(const Mma& mma, const Numbers& numbers, float* target, int rows,
                         int64_t apart = 1) {
  const auto at = places<kRows, kAcross<Mma>>(mma);
  CUTE_UNROLL
  for (int i = 0; i < size(numbers); ++i) {
    const int row = get<0>(at(i, 0));
    if (get<1>(at(i, 0)) == 0 && row < rows) target[row * apart] = numbers(i);
  }
}

}  // namespace verbatim::cuda::tiles
