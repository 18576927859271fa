// Shapes, layouts, shared memory and barriers of the sm90 forward kernel.
#pragma once

#include <cute/tensor.hpp>

#include <cstdint>

#include "backend/cuda/device/plan_view.h"
#include "backend/cuda/sm90/band.cuh"
#include "backend/cuda/sm90/fwd/params.h"
#include "backend/cuda/sm90/variant.h"
#include "contract/contract.h"

namespace verbatim::cuda::sm90::fwd {

using namespace cute;

constexpr int kWarpgroup = 128;   // threads
constexpr int kSwizzleSpan = 64;  // 2-byte elements in a 128-byte swizzle span
constexpr int kVisitRing = 8;     // decoded visits in flight
constexpr int kInlineBands = 4;   // of a visit; more are read from the plan

/// Ids of bar.sync, and the warpgroup's number; 0 belongs to __syncthreads.
enum class NamedBarrier : uint32_t {
  token = 1,  // A warpgroup issues its GEMMs while it has it, so that the others' softmax runs
              // under them
  tail = 4    // joins the threads of a warpgroup
};

/// The query tile of a chain: where its results go.
struct QueryTile {
  int32_t begin, rows;  // its first query, and how many belong to it
  int32_t at;           // the row of that query in the tensors
  int32_t q_head, kv_head, batch;
  int32_t head, tile;  // of the plan: batch * kv_heads + kv_head
};

/// One (query tile, KV tile) pair, as the decoder publishes it.
template <int kConsumers>
struct alignas(16) Visit {
  enum Flag : uint32_t {
    first = 1,  // of its chain
    empty = 2,  // no tile: the chain has no visit, its rows see nothing
    tail = 4,   // k_used is less than kTileKv
    stop = 8,   // no visit: the end
    // Of the warpgroup's rows:
    masked = 16,  // some row does not see some key
    hidden = 32,  // no row sees any key
    fresh = 64,   // no row saw any key before in this chain (known to the warpgroup, not here)
    // Of instances that leave hidden halves out:
    half_0 = 128,
    half_1 = 256,  // every row sees that half of the keys, and no row the other
    half = half_0 | half_1,
    asks_0 = 512,
    asks_1 = 1024,  // of the visit: some warpgroup multiplies that half of the keys
    asks = asks_0 | asks_1
  };
  int32_t k_begin;  // first key
  int32_t k_at;     // its row in the tensors
  int32_t k_width;  // keys that belong to the tile
  int32_t k_used;   // keys from here on are seen by no row: their V rows count as 0
  int32_t band_count;
  const OrderView* order;  // of the bands beyond the inline ones
  int32_t slice_begin;
  uint32_t flags[kConsumers];
  QueryTile queries;
  Band bands[kInlineBands];
};

/// Where two warpgroups share a tile's rows and take turns, S is there long before P V is over:
/// time to subtract the base. What follows has another rounding, so it is part of the arithmetic.
constexpr bool subtracts_early(int tile_q) { return tile_q == 2 * kRows; }

/// Everything the compiler must know. kHeadDim: of Q and K; kHeadDimV: of V and O.
template <class Element_, int kHeadDim_, int kHeadDimV_, Variant kVariant_>
struct Config {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_, kHeadDimV = kHeadDimV_;
  static constexpr bool kExtras = kVariant_ == Variant::extras;
  static constexpr bool kHalves = kVariant_ == Variant::halves;
  static constexpr TileShape kTile = contract::tile(Pass::forward, kHeadDim, kHeadDimV);
  static constexpr int kTileQ = kTile.q, kTileKv = kTile.kv;
  static_assert(!kHalves || kTileKv == 2 * kHalfKeys);
  static constexpr int kParts = 1, kCtas = 1;  // CTAs of a query tile; on a multiprocessor
  // Tiles in flight.
  static constexpr int kQStages = 2;
  static constexpr int kKStages = kHeadDim == 64 ? 4 : kHeadDim == 128 ? 2 : 3;
  static constexpr int kVStages = kHeadDim == 64 ? 4 : 3;

  static constexpr int kConsumers = kTileQ / kRows;  // warpgroups
  static constexpr bool kEarly = subtracts_early(kTileQ);
  static constexpr int kConsumerWarps = 4 * kConsumers;
  static constexpr int kThreads = kWarpgroup * (1 + kConsumers);
  static constexpr int kServiceRegisters = kConsumers == 2 ? 56 : 32;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 224 : 160;
  static_assert(kTileQ % kRows == 0 && (kConsumers == 2 || kConsumers == 3));
  static_assert(kHeadDim % kSwizzleSpan == 0 && kHeadDimV % kSwizzleSpan == 0);
  static_assert(kHeadDimV <= kHeadDim && kTileKv % 16 == 0 && kTileKv <= 256);
  static_assert(kServiceRegisters + kConsumers * kConsumerRegisters <= 65536 / kWarpgroup);

  using KMajor = GMMA::Layout_K_SW128_Atom<Element>;
  using MnMajor = GMMA::Layout_MN_SW128_Atom<Element>;
  using LayoutQ =
      decltype(tile_to_shape(KMajor{}, Shape<Int<kTileQ>, Int<kHeadDim>, Int<kQStages>>{}));
  using LayoutK =
      decltype(tile_to_shape(KMajor{}, Shape<Int<kTileKv>, Int<kHeadDim>, Int<kKStages>>{}));
  // V as (dim, key): the same bytes as K's layout, read across.
  using LayoutV = decltype(tile_to_shape(
      MnMajor{}, Shape<Int<kHeadDimV>, Int<kTileKv>, Int<kVStages>>{}, cute::Step<_2, _1, _3>{}));

  using MmaS = decltype(make_tiled_mma(
      GMMA::ss_op_selector<Element, Element, float,
                           Shape<Int<kRows>, Int<kTileKv>, Int<kHeadDim>>>()));
  using MmaSHalf = decltype(make_tiled_mma(
      GMMA::ss_op_selector<Element, Element, float,
                           Shape<Int<kRows>, Int<kHalfKeys>, Int<kHeadDim>>>()));
  using MmaO = decltype(make_tiled_mma(
      GMMA::rs_op_selector<Element, Element, float, Shape<Int<kRows>, Int<kHeadDimV>, Int<kTileKv>>,
                           GMMA::Major::K, GMMA::Major::MN>()));

  using Visit = fwd::Visit<kConsumers>;

  /// Q: 64 rows for each warpgroup; all tiles 128-byte swizzled, in columns of 64 elements.
  struct SharedStorage {
    alignas(1024) Element q[kQStages][kTileQ * kHeadDim];
    alignas(1024) Element k[kKStages][kTileKv * kHeadDim];
    alignas(1024) Element v[kVStages][kTileKv * kHeadDimV];
    Visit visit[kVisitRing];
    QueryTile queries;  // the decoder's: of the chain it is at

    alignas(8) uint64_t visit_full[kVisitRing], visit_empty[kVisitRing];
    uint64_t q_full[kQStages], q_empty[kQStages];
    uint64_t k_full[kKStages], k_empty[kKStages];
    uint64_t v_full[kVStages], v_empty[kVStages];
  };
  static_assert(sizeof(SharedStorage) <= 227 * 1024);
};

}  // namespace verbatim::cuda::sm90::fwd
