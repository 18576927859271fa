// The sm90 forward of masks that blocks cut: shapes, layouts, shared memory and barriers.
#pragma once

#include "backend/cuda/sm90/fwd/config.h"

namespace verbatim::cuda::sm90::fwd {

/// A tile of keys, or one or two halves of tiles of which no row sees the other half.
struct alignas(16) BlockVisit {
  enum Flag : uint32_t {
    first = 1,    // of its chain
    tail = 2,     // k_used is less than kTileKv
    stop = 4,     // no visit: the end
    masked = 8,   // some row does not see some key
    hidden = 16,  // no keys: a chain whose rows see nothing, or the end
    single = 32,  // a half alone
    pair = 64,    // halves of two tiles
    second = 128  // the second half alone is left of the visit (known to the consumer, not here)
  };
  int2 k_at;  // rows of its halves in the tensors; -1: there is none
  // Of a tile, as in Visit:
  int32_t k_begin, k_width, k_used, band_count;
  const OrderView* order;
  int32_t slice_begin;
  uint32_t flags;
  QueryTile queries;
  Band bands[kInlineBands];
};

/// 64 rows of a query tile a CTA, so that none waits for what others see, of one query head, two
/// CTAs a multiprocessor, or of two that share K and V. Slots hold halves of KV tiles: only those
/// are fetched that the rows see.
template <class Element_, int kHeadDim_, int kHeadDimV_, int kHeads_>
struct BlockConfig {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_, kHeadDimV = kHeadDimV_, kHeads = kHeads_;
  static constexpr bool kExtras = false;
  static constexpr bool kHalves = false;  // a visit is what its rows see
  static constexpr TileShape kTile = contract::tile(Pass::forward, kHeadDim, kHeadDimV);
  static constexpr int kTileQ = kRows, kTileKv = kTile.kv;
  static constexpr int kParts = kTile.q / kTileQ;  // CTAs of a query tile
  static constexpr int kConsumerWarps = 4 * kHeads;
  static constexpr bool kEarly = subtracts_early(kTile.q);
  // In flight: visits, tiles of Q, halves of K and V. A visit and the V of the one before need 4.
  static constexpr int kVisitRing = kHeadDim == 64 ? 8 : 6;
  static constexpr int kQStages = 2, kSlots = kHeadDim == 64 ? 8 : kHeads == 1 ? 5 : 9;

  static constexpr int kCtas = 2 / kHeads;  // of a multiprocessor
  static constexpr int kThreads = (1 + kHeads) * kWarpgroup;
  static constexpr int kServiceRegisters = 56, kConsumerRegisters = kHeads == 1 ? 200 : 224;
  static_assert(kHeadDim == kHeadDimV && kHeadDim % kSwizzleSpan == 0);
  static_assert(kTile.q % kTileQ == 0 && kTileKv == 2 * kHalfKeys && kSlots >= 4);
  static_assert(kCtas * (kServiceRegisters + kHeads * kConsumerRegisters) <= 65536 / kWarpgroup);

  using KMajor = GMMA::Layout_K_SW128_Atom<Element>;
  using MnMajor = GMMA::Layout_MN_SW128_Atom<Element>;
  using LayoutQ = decltype(tile_to_shape(
      KMajor{}, Shape<Int<kTileQ>, Int<kHeadDim>, Int<kHeads * kQStages>>{}));
  using LayoutK =
      decltype(tile_to_shape(KMajor{}, Shape<Int<kHalfKeys>, Int<kHeadDim>, Int<kSlots>>{}));
  // V as (dim, key): the same bytes as K's layout, read across.
  using LayoutV = decltype(tile_to_shape(
      MnMajor{}, Shape<Int<kHeadDimV>, Int<kHalfKeys>, Int<kSlots>>{}, cute::Step<_2, _1, _3>{}));

  using MmaS = decltype(make_tiled_mma(
      GMMA::ss_op_selector<Element, Element, float,
                           Shape<Int<kRows>, Int<kHalfKeys>, Int<kHeadDim>>>()));
  using MmaO = decltype(make_tiled_mma(
      GMMA::rs_op_selector<Element, Element, float,
                           Shape<Int<kRows>, Int<kHeadDimV>, Int<kHalfKeys>>, GMMA::Major::K,
                           GMMA::Major::MN>()));

  using Visit = BlockVisit;

  struct SharedStorage {
    alignas(1024) Element q[kQStages][kHeads][kTileQ * kHeadDim];
    alignas(1024) Element slots[kSlots][kHalfKeys * kHeadDim];  // K of a visit, V of the one before
    Visit visit[kVisitRing];
    QueryTile queries;  // the decoder's: of the chain it is at

    alignas(8) uint64_t visit_full[kVisitRing], visit_empty[kVisitRing];
    uint64_t q_full[kQStages], q_empty[kQStages];
    uint64_t slot_full[kSlots], slot_empty[kSlots];
  };
  static_assert(kCtas * (sizeof(SharedStorage) + 1024) <= 228 * 1024);
};

}  // namespace verbatim::cuda::sm90::fwd
