// Products of e4m3 (docs/tl.md): mma.sync m16n8k32, and what takes it in place of 16-bit factors.
//
// A thread of a product holds two neighbouring columns of each block of 8; as the first factor of
// the next it should hold four of each 16. Which keys a sum takes in which place is free, as long
// as both factors have it so: the fragments of P are its registers as they lie, and those of V are
// read to match. Nothing crosses lanes.
#pragma once

#include "backend/cuda/device/tiles.cuh"
#include "core/dtype.h"

namespace verbatim::cuda::tiles {

struct Sm89 : Sm80 {
  using E4m3Atom = MMA_Atom<SM89_16x8x32_F32E4M3E4M3F32_TN>;
};

/// Q K^T by kWarps warps, each with rows of its own.
template <class Gpu, int kWarps>
using ScoresOfE4m3 = TiledMMA<typename Gpu::E4m3Atom, Layout<Shape<Int<kWarps>, _1, _1>>,
                              Tile<Int<16 * kWarps>, _16, _32>>;
/// P V: ldmatrix brings V in pairs of neighbouring columns, so of each 16 one instruction makes the
/// even ones and another the odd.
template <class Gpu, int kWarps>
using ResultOfE4m3 = TiledMMA<typename Gpu::E4m3Atom, Layout<Shape<Int<kWarps>, _1, _1>>,
                              Tile<Int<16 * kWarps>, Layout<Shape<_8, _2>, Stride<_2, _1>>, _32>>;

/// Four numbers, rounded to the nearest even, the first in the lowest byte.
__device__ inline uint32_t e4m3_of(float a, float b, float c, float d) {
  uint16_t low, high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
  return low | uint32_t{high} << 16;
}

constexpr float kE4m3Seen = 0x1p118f;  // times this no f32 that is normal rounds to 0
/// The signs of bytes of P that are 0 though what they are made of, times kE4m3Seen, is not.
__device__ inline uint32_t marks_of_e4m3(uint32_t word, uint32_t seen) {
  return __vcmpeq4(word, 0) & __vcmpne4(seen, 0) & 0x80808080u;
}

/// P as the first factor of P V, times kE4m3One: ((4, 2, 2), M, K), of which fragment k has the
/// columns of blocks 4 k to 4 k + 3. `cut`: of a tile of which some row does not see all: a P that
/// is seen and rounds to 0 becomes -0, a hidden one 0. -0 adds nothing either.
template <class Mma, class Sums>
__device__ auto factor_of_e4m3(const Mma&, const Sums& sums, bool cut) {
  auto factor = make_tensor<float_e4m3_t>(
      make_shape(Shape<_4, _2, _2>{}, size<1>(sums), Int<size<2>(Sums{}) / 4>{}));
  auto words = recast<uint32_t>(factor);  // ((1, 2, 2), M, K)
  const auto for_each_word = [&](auto&& f) {
    CUTE_UNROLL
    for (int k = 0; k < size<2>(factor); ++k) CUTE_UNROLL
    for (int m = 0; m < size<1>(factor); ++m) CUTE_UNROLL
    for (int half = 0; half < 2; ++half) CUTE_UNROLL
    for (int row = 0; row < 2; ++row)
      f(words(make_coord(0, row, half), m, k), [&](float scale) {
        const auto at = [&](int column, int block) {
          return scale * sums(make_coord(column, row), m, 4 * k + 2 * half + block);
        };
        return e4m3_of(at(0, 0), at(1, 0), at(0, 1), at(1, 1));
      });
  };
  for_each_word([](uint32_t& word, auto&& times) { word = times(kE4m3One); });
  if (cut)
    for_each_word(
        [](uint32_t& word, auto&& times) { word |= marks_of_e4m3(word, times(kE4m3Seen)); });
  return factor;
}

/// sums += a v, a from factor_of_e4m3().
template <class Mma, class Sums, class Factor, int kRows, int kCols>
__device__ void multiply_e4m3(const Mma& mma, Sums& sums, const Factor& a,
                              SharedTile<float_e4m3_t, kRows, kCols>& v) {
  const auto rows = v.rows();
  const int lane = thread_here() % 32;
  CUTE_UNROLL
  for (int k = 0; k < kRows / 32; ++k) CUTE_UNROLL
  for (int n = 0; n < kCols / 16; ++n) {
    // Of keys 8 i + 2 t and the next, word i has columns 2 g and 2 g + 1: lane 4 g + t.
    uint32_t pairs[4];
    SM75_U16x8_LDSM_T::copy(reinterpret_cast<const uint128_t&>(rows(32 * k + lane, 16 * n)),
                            pairs[0], pairs[1], pairs[2], pairs[3]);
    CUTE_UNROLL
    for (int odd = 0; odd < 2; ++odd) {
      auto b = make_tensor<float_e4m3_t>(Shape<Shape<_4, _2>>{});
      auto words = recast<uint32_t>(b);
      const uint32_t bytes = odd ? 0x7531 : 0x6420;
      words(0) = __byte_perm(pairs[0], pairs[1], bytes);
      words(1) = __byte_perm(pairs[2], pairs[3], bytes);
      CUTE_UNROLL
      for (int m = 0; m < size<1>(sums); ++m) gemm(mma, a(_, m, k), b, sums(_, m, 2 * n + odd));
    }
  }
}

/// Writes the first `rows` rows of a result, `stride` elements apart: a thread has four
/// neighbouring columns of each 16.
template <int kRows, int kCols, class Mma, class Sums>
__device__ void write_rows(const Mma& mma, const Sums& sums, bfloat16_t* target, int64_t stride,
                           int rows) {
  const auto values = by_rows(sums);
  const auto at = places<kRows, kCols>(mma);
  CUTE_UNROLL
  for (int i = 0; i < size<0>(values); ++i) {
    const int row = get<0>(at(i, 0));
    if (row >= rows) continue;
    CUTE_UNROLL
    for (int j = 0; j < size<1>(values); j += 4) {  // two even columns, then the two odd ones
      cutlass::Array<bfloat16_t, 4> four;
      CUTE_UNROLL
      for (int c = 0; c < 4; ++c) four[c] = bfloat16_t(values(i, j + c % 2 * 2 + c / 2));
      *reinterpret_cast<uint2*>(target + row * stride + get<1>(at(i, j))) =
          reinterpret_cast<const uint2&>(four);
    }
  }
}

}  // namespace verbatim::cuda::tiles
