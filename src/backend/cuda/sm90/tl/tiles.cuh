// What kernels translated from TL for Hopper are made of (docs/tl.md), beside what all of them have
// (device/tiles.cuh): copies by TMA, and products of a warpgroup by wgmma. A warpgroup has 64 rows
// of the query tile, a thread two of them, 8 apart.
#pragma once

#include <algorithm>

#include "backend/cuda/device/tiles.cuh"
#include "backend/cuda/sm90/band.cuh"
#include "backend/cuda/sm90/encode_map.h"
#include "backend/cuda/sm90/fragment.cuh"
#include "backend/cuda/sm90/gemm.cuh"
#include "backend/cuda/sm90/tl/walk.cuh"

namespace verbatim::cuda::sm90::tl {

using namespace cute;
using tiles::apply;
using tiles::by_rows;
using tiles::combine;
using tiles::complete;
using tiles::inverse;
using tiles::logsumexp;
using tiles::softmax;

constexpr int kWarpgroup = 128;  // threads
constexpr int kRows = 64;        // of a tile, for a warpgroup
constexpr int kSpan = 64;        // 2-byte elements in a 128-byte swizzle span

/// Registers of a thread, where `groups` warpgroups compute and one serves them, in each of `ctas`.
/// A warp that `turns` tiles needs 64: where it has fewer, each group gives some, as its factors of
/// bytes take half.
constexpr int given_registers(int groups, int ctas) {
  return ctas == 2 || groups == 3 ? 16 : groups == 4 ? 8 : 0;
}
constexpr int registers_of_group(int groups, int ctas, bool turns = false) {
  const int registers = ctas == 2 ? 200 : groups <= 2 ? 216 : groups == 3 ? 160 : 112;
  return registers - (turns ? given_registers(groups, ctas) : 0);
}
constexpr int registers_of_service(int groups, int ctas, bool turns = false) {
  const int registers = ctas == 2 ? 56 : groups <= 2 ? 72 : 32;
  return registers + (turns ? groups * given_registers(groups, ctas) : 0);
}
/// Whether that is no more than the CTA is launched with: who asked for more would wait forever.
constexpr bool registers_suffice(int groups, int ctas, bool turns = false) {
  const int warpgroups = groups + 1;
  const int launched = std::min(65536 / (kWarpgroup * warpgroups * ctas), 255) / 8 * 8;
  return groups * registers_of_group(groups, ctas, turns) +
             registers_of_service(groups, ctas, turns) <=
         warpgroups * launched;
}
static_assert(registers_suffice(1, 1) && registers_suffice(1, 2) && registers_suffice(2, 1) &&
              registers_suffice(3, 1) && registers_suffice(4, 1) && registers_suffice(4, 1, true));

/// Ids of bar.sync, and the warpgroup's number; 0 belongs to __syncthreads.
enum class NamedBarrier : uint32_t {
  turn = 1,  // to begin products
  own = 5    // of the threads of a warpgroup
};
constexpr int kMostGroups = 4;

/// What a warp agrees on, in a register: predicates are few, and one kept for long is spilled.
class Flag {
 public:
  __device__ __forceinline__ explicit Flag(bool value) : value_(__shfl_sync(~0u, value, 0)) {}
  __device__ __forceinline__ operator bool() const {
    int value;  // compared anew where it is asked for
    asm volatile("mov.b32 %0, %1;" : "=r"(value) : "r"(value_));
    return value != 0;
  }

 private:
  int value_;
};

// ---- Shared memory.

/// kRows x kCols 16-bit elements: spans of 64 columns one behind the other, 128-byte swizzled, as
/// TMA writes them and wgmma reads them.
template <class Element, int kRows_, int kCols_>
struct SharedTile {
  static constexpr int kRows = kRows_, kCols = kCols_, kSpan = tl::kSpan;
  static_assert(kCols % kSpan == 0 && kRows % 8 == 0);
  alignas(1024) Element data[kRows * kCols];

  /// (kRows, kCols)
  __host__ __device__ auto rows() {
    return make_tensor(make_smem_ptr(data), tile_to_shape(GMMA::Layout_K_SW128_Atom<Element>{},
                                                          Shape<Int<kRows>, Int<kCols>>{}));
  }
  /// (kCols, kRows)
  __host__ __device__ auto transposed() {
    return make_tensor(make_smem_ptr(data),
                       tile_to_shape(GMMA::Layout_MN_SW128_Atom<Element>{},
                                     Shape<Int<kCols>, Int<kRows>>{}, cute::Step<_2, _1>{}));
  }
};

/// What loads tiles of `rows` rows of a tensor (batch, length, heads, dim).
template <class Element>
cudaError_t make_map(CUtensorMap& map, const TensorRef& tensor, const Sizes& sizes, int64_t length,
                     int64_t heads, int64_t dim, int32_t rows) {
  if (length == 0) return cudaSuccess;  // nothing is ever loaded through it
  cudaError_t status{};
  const MapEncoder encode = find_map_encoder(&status);
  if (!encode) return status == cudaSuccess ? cudaErrorNotSupported : status;
  const MapShape shape = map_shape(tensor, sizes.batch, length, heads, dim, rows, sizeof(Element));
  const CUresult result =
      encode_map(encode, &map, shape, tensor.data,
                 sizeof(Element) == 1             ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                 : is_same_v<Element, bfloat16_t> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                  : CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

/// Copies the n-th tile into its ring: rows from `row` on, of which some may belong to what lies
/// behind; by one lane. Tiles that many chains visit should stay in L2.
template <class Tile, int kSlots>
__device__ void copy_in(Tile (&tiles)[kSlots], Slots<kSlots>& slots, uint32_t n,
                        const CUtensorMap& map, TMA::CacheHintSm90 hint, int32_t row, int32_t head,
                        int32_t batch) {
  wait_empty(slots.empty, n);
  uint64_t* full = &use(slots.full, n);
  ptx::mbarrier_arrive_expect(full, sizeof(tiles[0].data));
#pragma unroll
  for (int column = 0; column < Tile::kCols; column += Tile::kSpan)
    SM90_TMA_LOAD_4D::copy(&map, full, static_cast<uint64_t>(hint),
                           use(tiles, n).data + column * Tile::kRows, column, row, head, batch);
}
constexpr auto kOfChain = TMA::CacheHintSm90::EVICT_FIRST;
constexpr auto kOfVisit = TMA::CacheHintSm90::EVICT_LAST;

/// A barrier of the warpgroup's threads; whether any of them came with `value`.
__device__ __forceinline__ bool any_of_group(int group, bool value) {
  const auto id = static_cast<uint32_t>(NamedBarrier::own) + group;
  return ptx::named_barrier_or(id, kWarpgroup, value);
}

/// Rows from `used` on become 0, if there are any: what lies there may be NaN, and 0 * NaN is NaN.
/// Every warpgroup does it for itself; writing zeros twice is harmless.
template <class Element, int kTileRows, int kCols>
__device__ __forceinline__ void clear_behind(SharedTile<Element, kTileRows, kCols>& tile,
                                             int32_t used, int group) {
  constexpr int kLine = kSpan * 2;  // bytes
  if (used >= kTileRows) return;
#pragma unroll 1
  for (int column = 0; column < kCols; column += kSpan) {
    auto* lines = reinterpret_cast<uint8_t*>(tile.data + column * kTileRows);
#pragma unroll 1
    for (int at = used * kLine + tiles::thread_here() % kWarpgroup * 16; at < kTileRows * kLine;
         at += kWarpgroup * 16)
      *reinterpret_cast<uint4*>(lines + at) = make_uint4(0, 0, 0, 0);
  }
  ptx::fence_async_shared();
  any_of_group(group, false);
}

/// Whether the tile holds neither NaN nor infinity: asked by a whole warpgroup.
template <class Element, int kTileRows, int kCols>
__device__ __forceinline__ bool is_finite(const SharedTile<Element, kTileRows, kCols>& tile,
                                          int group) {
  constexpr bool kBytes = sizeof(Element) == 1;  // e4m3, which has one NaN of either sign
  constexpr uint32_t kExponent = kBytes                       ? 0x7f7f7f7fu
                                 : is_same_v<Element, half_t> ? 0x7c007c00u
                                                              : 0x7f807f80u;
  constexpr uint32_t kOnes = kBytes ? 0x01010101u : 0x00010001u;
  const auto* words = reinterpret_cast<const uint4*>(tile.data);
  uint32_t found = 0;  // without predicates, of which there are few
  const auto look = [&](uint32_t word) {
    const uint32_t rest = ~word & kExponent;  // 0 in an element: its exponent is all ones
    found |= (rest - kOnes) & ~rest;
  };
#pragma unroll 4
  for (int i = tiles::thread_here() % kWarpgroup; i < kTileRows * kCols * int{sizeof(Element)} / 16;
       i += kWarpgroup) {
    const uint4 word = words[i];
    look(word.x), look(word.y), look(word.z), look(word.w);
  }
  return !any_of_group(group, found & kOnes << (kBytes ? 7 : 15));
}

// ---- Products. Each is begun in the background and waited for.

/// A factor in shared memory whose rows lie along the summed axis: Q and K^T. `group`: of a first
/// factor, whose 64 rows.
template <class Tile>
struct AlongK {
  static constexpr auto kMajor = GMMA::Major::K;
  Tile& tile;
  int group = 0;
  __device__ auto view() const { return tile.rows(); }
};
template <class Tile>
AlongK(Tile&) -> AlongK<Tile>;
template <class Tile>
AlongK(Tile&, int) -> AlongK<Tile>;
/// One whose rows lie across it: V.
template <class Tile>
struct AcrossK {
  static constexpr auto kMajor = GMMA::Major::MN;
  Tile& tile;
  __device__ auto view() const { return tile.transposed(); }
};
template <class Tile>
AcrossK(Tile&) -> AcrossK<Tile>;

/// wgmma of 64 x kCols, with a first factor in shared memory or in registers: 32 bytes deep.
template <class Element, int kCols>
using Extent = Shape<Int<kRows>, Int<kCols>, Int<32 / sizeof(Element)>>;
template <class Element, int kCols, GMMA::Major kMajorB>
using FromShared =
    decltype(make_tiled_mma(GMMA::ss_op_selector<Element, Element, float, Extent<Element, kCols>,
                                                 GMMA::Major::K, kMajorB>()));
template <class Element, int kCols, GMMA::Major kMajorB>
using FromRegisters =
    decltype(make_tiled_mma(GMMA::rs_op_selector<Element, Element, float, Extent<Element, kCols>,
                                                 GMMA::Major::K, kMajorB>()));

/// This thread's part of 64 x kCols: ((2, 2, kCols / 8), 1, 1), f32.
template <class Element, int kCols>
__device__ auto registers() {
  return partition_fragment_C(FromShared<Element, kCols, GMMA::Major::K>{},
                              Shape<Int<kRows>, Int<kCols>>{});
}
/// The same as a first factor, 64 x kDepth, rounded: ((2, 2, 2), 1, kDepth / 16); of e4m3
/// ((4, 2, 2), 1, kDepth / 32).
template <class Element, int kDepth>
__device__ auto factor() {
  return make_tensor<Element>(partition_shape_A(FromRegisters<Element, 64, GMMA::Major::K>{},
                                                Shape<Int<kRows>, Int<kDepth>>{}));
}
/// One number a row.
__device__ inline auto numbers() { return make_tensor<float>(Int<2>{}); }

/// sums += a b, or = a b unless `adds`: begins it.
template <class Sums, class A, class B>
__device__ __forceinline__ void multiply(Sums& sums, bool adds, const AlongK<A>& a, const B& b) {
  const auto factor = b.view();  // (N, K)
  using Element = typename decltype(factor)::value_type;
  FromShared<Element, decltype(size<0>(factor))::value, B::kMajor> mma;
  const auto thread = mma.get_slice(0);
  const auto mine =
      local_tile(a.view(), Shape<Int<kRows>, Int<A::kCols>>{}, make_coord(a.group, 0));  // (64, K)
  gemm(mma, adds, thread.partition_fragment_A(mine), thread.partition_fragment_B(factor), sums);
}
/// The same of what round_to() or weigh() made.
template <class Sums, class Element, class Layout, class B>
__device__ __forceinline__ void multiply(Sums& sums, bool adds, const Tensor<Element, Layout>& a,
                                         const B& b) {
  const auto factor = b.view();  // (N, K)
  FromRegisters<typename Tensor<Element, Layout>::value_type, decltype(size<0>(factor))::value,
                B::kMajor>
      mma;
  gemm(mma, adds, a, mma.get_slice(0).partition_fragment_B(factor), sums);
}
/// In place of a product, so that those who count them find one.
__device__ __forceinline__ void multiply_nothing() { warpgroup_commit_batch(); }

/// Waits until all products but the last `kLeft` are complete, `sums` among them.
template <int kLeft, class Sums>
__device__ __forceinline__ void finish(Sums& sums) {
  warpgroup_wait<kLeft>();
  warpgroup_fence_operand(sums);
}

/// Warpgroups begin products in turns, so that one's softmax runs beside the others' products.
class Turns {
 public:
  __device__ Turns(int group, int groups) : group_(group), groups_(groups) {
    if (group + 1 == groups) pass();
  }
  __device__ __forceinline__ void take() const { ptx::named_barrier(id(group_), 2 * kWarpgroup); }
  __device__ __forceinline__ void pass() const {
    ptx::named_barrier_arrive(id(group_ + 1 == groups_ ? 0 : group_ + 1), 2 * kWarpgroup);
  }
  /// Behind the last product: the first turn is still on its way.
  __device__ void end() const {
    if (group_ == 0) take();
  }

 private:
  __device__ static uint32_t id(int group) {
    return static_cast<uint32_t>(NamedBarrier::turn) + group;
  }
  int group_, groups_;
};

// ---- Registers.

/// The first row of this thread in the tile; the second is 8 below.
__device__ __forceinline__ int32_t first_row(int group) {
  const int thread = tiles::thread_here() % kWarpgroup;
  return kRows * group + thread / 32 * 16 + thread % 32 / 4;
}

/// A product (MMA_C) as the first factor of the next (MMA_A): the order of registers is the same.
template <class Factor, class Sums>
__device__ __forceinline__ void round_to(Factor& factor, const Sums& sums) {
  auto pairs = recast<uint32_t>(factor);
  CUTE_UNROLL
  for (int i = 0; i < size(pairs); ++i)
    pairs(i) = pack<typename Factor::value_type>(sums(2 * i), sums(2 * i + 1));
}

/// tiles::weigh(), to a factor: the order of registers is the same.
template <class Factor, class... Others>
__device__ __forceinline__ void weigh(Factor& factor, Others&&... others) {
  tiles::weigh<typename Factor::value_type>(recast<uint32_t>(factor), others...);
}

/// sums += a b of a tile that holds NaN or infinities: what a zero of `a` meets adds nothing, so
/// that they reach only the rows that see them.
template <class Sums, class Factor, class Tile>
__device__ __forceinline__ void multiply_carefully(Sums& sums, const Factor& a, Tile& tile) {
  using Element = typename Factor::value_type;
  // Elements are counted through, so they lie in memory: in a copy that the compiler does not see
  // through, or it would keep `a` there.
  constexpr int kWords = size(Factor{}) / 2;
  uint32_t words[kWords];
  const auto from = recast<const uint32_t>(a);
  CUTE_UNROLL
  for (int i = 0; i < kWords; ++i) asm volatile("mov.b32 %0, %1;" : "=r"(words[i]) : "r"(from(i)));
  const int lane = tiles::thread_here() % 32;
  CUTE_NO_UNROLL
  for (int k = 0; k < Tile::kRows; ++k) {
    float x[2];  // column k lies in block k / 8 of lane k % 8 / 2 of the quad
    CUTE_UNROLL
    for (int r = 0; r < 2; ++r) {
      const uint32_t pair = __shfl_sync(~0u, words[k / 8 * 2 + r], lane / 4 * 4 + k % 8 / 2);
      x[r] = static_cast<float>(Element::bitcast(static_cast<uint16_t>(pair >> k % 2 * 16)));
    }
    const Element* row = tile.data + k * kSpan + lane % 4 * 2;
    CUTE_UNROLL
    for (int i = 0; i < size(sums); ++i) {
      constexpr int kBlocks = kSpan / 8;  // of a span; swizzled by the row
      const int block = i / 4;
      const auto y = static_cast<float>(
          row[block / kBlocks * Tile::kRows * kSpan + (block % kBlocks ^ k % kBlocks) * 8 + i % 2]);
      if (x[i / 2 % 2] != 0) sums(i) = fmaf(x[i / 2 % 2], y, sums(i));
    }
  }
}

// ---- From registers to global memory.

/// Writes the first `rows` rows of a tile at `target`, `stride` elements apart.
template <class Element, class Sums>
__device__ void copy_out(const Sums& sums, Element* target, int64_t stride, int32_t rows,
                         int group) {
  store_rows<Element, size(Sums{}) / 4>(sums, target, stride, first_row(group), rows);
}
/// One number a row, `apart` from the next.
template <class Numbers>
__device__ void copy_out(const Numbers& numbers, float* target, int32_t rows, int group,
                         int64_t apart = 1) {
  const int32_t row = first_row(group);
  if (threadIdx.x % 4 != 0) return;
  CUTE_UNROLL
  for (int i = 0; i < 2; ++i)
    if (row + 8 * i < rows) target[(row + 8 * i) * apart] = numbers(i);
}

}  // namespace verbatim::cuda::sm90::tl
