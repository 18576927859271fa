// A wgmma accumulator's way to memory in 16 bits.
#pragma once

#include <cutlass/numeric_types.h>

#include <cstdint>
#include <type_traits>

namespace verbatim::cuda {

/// Two floats as a pair of T, rounded to nearest even.
template <class T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t packed;
  if constexpr (std::is_same_v<T, cutlass::bfloat16_t>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  return packed;
}

/// Transposes a 4 x 4 matrix of words held by the four lanes of a quad (lane l: column l).
__device__ __forceinline__ void transpose_quad(uint32_t (&w)[4], int lane) {
  const bool odd = lane & 1, high = lane & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {  // exchange with the neighbour inside each pair of words
    const uint32_t got = __shfl_xor_sync(~0u, odd ? w[i] : w[i + 1], 1);
    (odd ? w[i] : w[i + 1]) = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {  // and the pairs with the other half of the quad
    const uint32_t got = __shfl_xor_sync(~0u, high ? w[i] : w[i + 2], 2);
    (high ? w[i] : w[i + 2]) = got;
  }
}

/// Writes rows `row` and `row + 8` of a wgmma accumulator of 8 * kBlocks columns, 16 bytes a lane.
/// acc(4 j + 2 r + c) is row + 8 r, column 8 j + 2 (lane % 4) + c.
/// `base` is the first element of the tile's row 0; rows at or beyond `rows` are left alone, and
/// columns at or beyond `columns`, a multiple of 8.
template <class T, int kBlocks, class Acc>
__device__ __forceinline__ void store_rows(const Acc& acc, T* base, int64_t stride, int row,
                                           int rows, int columns = 8 * kBlocks) {
  const int lane = threadIdx.x % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = row + 8 * half;
#pragma unroll
    for (int block = 0; block < kBlocks; block += 4) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 4 * (block + i) + 2 * half;
        words[i] = pack<T>(acc(at), acc(at + 1));
      }
      transpose_quad(words, lane);
      if (r < rows && 8 * (block + lane) < columns) {
        *reinterpret_cast<uint4*>(base + r * stride + 8 * (block + lane)) =
            make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
  }
}

}  // namespace verbatim::cuda
