// Tensor-core building blocks of sm_80: swizzled tiles in shared memory, cp.async, ldmatrix, mma.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace verbatim::cuda {

/// kRows x kCols 16-bit elements, row-major; the 16-byte chunks of a row are permuted by the row's
/// number, so that ldmatrix meets no bank twice in either direction.
template <class Element, int kRows, int kCols>
struct SharedTile {
  static_assert(kCols % 64 == 0);
  alignas(128) Element data[kRows * kCols];

  __device__ Element* at(int row, int col) {
    return data + row * kCols + ((((col >> 3) ^ (row & 7)) << 3) | (col & 7));
  }
  __device__ uint32_t address(int row, int col) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(at(row, col)));
  }
};

/// Starts copying `rows` rows of `cols` elements (a multiple of 8); the rest of the tile becomes 0.
template <int kThreads, class Element, int kRows, int kCols>
__device__ void copy_async(SharedTile<Element, kRows, kCols>& tile, const Element* source,
                           int64_t stride, int rows, int cols) {
  constexpr int kChunks = kCols / 8;
#pragma unroll
  for (int i = threadIdx.x; i < kRows * kChunks; i += kThreads) {
    const int row = i / kChunks, col = i % kChunks * 8;
    const bool exists = row < rows && col < cols;
    const Element* from = exists ? source + row * stride + col : source;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(tile.address(row, col)),
                 "l"(from), "r"(exists ? 16 : 0)
                 : "memory");
  }
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most kPending of this thread's groups are in flight; then needs a CTA barrier.
template <int kPending>
__device__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Whether this thread's share of copy_async() holds a NaN or an infinity: after wait_copies(),
/// also before the barrier.
template <int kThreads, class Element, int kRows, int kCols>
__device__ bool nonfinite_copied(SharedTile<Element, kRows, kCols>& tile) {
  constexpr uint32_t kExponent = std::is_same_v<Element, __half> ? 0x7c00u : 0x7f80u;
  constexpr int kChunks = kCols / 8;
  bool found = false;
#pragma unroll 1
  for (int i = threadIdx.x; i < kRows * kChunks; i += kThreads) {
    const uint4 chunk = *reinterpret_cast<const uint4*>(tile.at(i / kChunks, i % kChunks * 8));
    for (const uint32_t word : {chunk.x, chunk.y, chunk.z, chunk.w}) {
      found |= (word & kExponent) == kExponent || (word >> 16 & kExponent) == kExponent;
    }
  }
  return found;
}

template <bool kTransposed>
__device__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  }
}

/// Which way an operand lies in its tile: rows along its own axis (M or N), or along K.
enum class Lies { along_k, across_k };

/// The 16 x 16 fragment of A at (m, k).
template <Lies kLies, class Tile>
__device__ void load_a(uint32_t (&a)[4], Tile& tile, int m, int k) {
  const int lane = threadIdx.x % 32, row = lane % 8, low = lane / 8 % 2 * 8, high = lane / 16 * 8;
  if constexpr (kLies == Lies::along_k) {
    load_matrices<false>(a, tile.address(m + row + low, k + high));
  } else {
    load_matrices<true>(a, tile.address(k + row + high, m + low));
  }
}

/// Two 16 x 8 fragments of B at (k, n) and (k, n + 8): {b[0], b[1]} and {b[2], b[3]}. Without
/// `second` the first one twice.
template <Lies kLies, class Tile>
__device__ void load_b(uint32_t (&b)[4], Tile& tile, int n, int k, bool second = true) {
  const int lane = threadIdx.x % 32, row = lane % 8, low = lane / 8 % 2 * 8;
  const int high = second ? lane / 16 * 8 : 0;
  if constexpr (kLies == Lies::along_k) {
    load_matrices<false>(b, tile.address(n + row + high, k + low));
  } else {
    load_matrices<true>(b, tile.address(k + row + low, n + high));
  }
}

template <class Element>
__device__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<Element, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// A warp's part of a product: 16 kM x 8 kN elements. In fragment (m, n) element 2 i + j is
/// (16 m + lane / 4 + 8 i, 8 n + lane % 4 * 2 + j).
template <int kM, int kN>
using Accumulator = float[kM][kN][4];

template <int kM, int kN>
__device__ void clear(Accumulator<kM, kN>& acc) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[m][n][e] = 0;
    }
  }
}

/// acc += A B over kK, where this warp owns rows m... of A and columns n... of B.
template <class Element, int kK, Lies kA, Lies kB, int kM, int kN, class TileA, class TileB>
__device__ void multiply(float (&acc)[kM][kN][4], TileA& a_tile, int m, TileB& b_tile, int n) {
#pragma unroll
  for (int k = 0; k < kK; k += 16) {
    uint32_t a[kM][4];
#pragma unroll
    for (int i = 0; i < kM; ++i) load_a<kA>(a[i], a_tile, m + 16 * i, k);
#pragma unroll
    for (int j = 0; j < kN; j += 2) {
      uint32_t b[4];
      load_b<kB>(b, b_tile, n + 8 * j, k, j + 1 < kN);
#pragma unroll
      for (int i = 0; i < kM; ++i) {
        mma<Element>(acc[i][j], a[i], b[0], b[1]);
        if (j + 1 < kN) mma<Element>(acc[i][j + 1], a[i], b[2], b[3]);
      }
    }
  }
}

/// multiply() for a B that holds NaN or infinities: what a zero of A meets adds nothing, so that
/// they reach only the rows that see them.
template <int kK, Lies kA, Lies kB, int kM, int kN, class TileA, class TileB>
__device__ void multiply_carefully(float (&acc)[kM][kN][4], TileA& a_tile, int m, TileB& b_tile,
                                   int n) {
  const int row = m + threadIdx.x % 32 / 4, col = n + threadIdx.x % 4 * 2;
#pragma unroll 1
  for (int k = 0; k < kK; ++k) {
#pragma unroll
    for (int i = 0; i < 2 * kM; ++i) {
      const int r = row + 8 * i;
      const float a = static_cast<float>(kA == Lies::along_k ? *a_tile.at(r, k) : *a_tile.at(k, r));
      if (a == 0) continue;
#pragma unroll
      for (int j = 0; j < 2 * kN; ++j) {
        const int c = col + j / 2 * 8 + j % 2;
        const float b =
            static_cast<float>(kB == Lies::along_k ? *b_tile.at(c, k) : *b_tile.at(k, c));
        float& sum = acc[i / 2][j / 2][i % 2 * 2 + j % 2];
        sum = fmaf(a, b, sum);
      }
    }
  }
}

/// Two neighbours, rounded to nearest even.
__device__ inline __nv_bfloat162 round_pair(float x, float y, __nv_bfloat16) {
  return __floats2bfloat162_rn(x, y);
}
__device__ inline __half2 round_pair(float x, float y, __half) { return __floats2half2_rn(x, y); }

template <class Element>
__device__ void store_pair(Element* to, float x, float y) {
  const auto pair = round_pair(x, y, Element{});
  *reinterpret_cast<uint32_t*>(to) = reinterpret_cast<const uint32_t&>(pair);
}

}  // namespace verbatim::cuda
