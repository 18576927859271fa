// Shapes, layouts, shared memory and barriers of the sm90 backward kernel.
#pragma once

#include <cute/tensor.hpp>

#include <cstdint>

#include "backend/cuda/sm90/band.cuh"
#include "backend/cuda/sm90/bwd/launch.h"
#include "backend/cuda/sm90/bwd/stats.cuh"
#include "contract/contract.h"

namespace verbatim::cuda::sm90::bwd {

using namespace cute;

constexpr int kServiceThreads = 128;   // one warpgroup
constexpr int kConsumerThreads = 256;  // two warpgroups
constexpr int kThreads = kServiceThreads + kConsumerThreads;
constexpr int kServiceRegisters = 40, kConsumerRegisters = 232;
constexpr int kChainRing = 4;
static_assert(kChainRing <= 4);  // Visit::Head::chain has two bits

/// Ids of bar.sync; 0 belongs to __syncthreads.
enum class NamedBarrier : uint32_t {
  scores_stored = 1,
  warpgroup_0 = 2,
  warpgroup_1 = 3,
  ended = 4
};

/// One (query tile, KV tile) pair, as the decoder publishes it.
template <int kBands>
struct alignas(16) Visit {
  int32_t row;      // index of the dQ row tile: (b * q_heads + h) * max_q_tiles + q_tile;
                    // negative: no more visits
  int32_t key;      // index of the KV tile, as in Chain90
  int32_t addend;   // of its row; for the first 0, or -1 - r if row r had this sum slot before
  int32_t q_begin;  // first query row of the tile
  struct Head {
    uint16_t first : 1;  // of its chain
    uint16_t last : 1;   // of its chain
    uint16_t chain : 2;  // slot of its chain
    uint16_t rows : 12;  // of the tile if this is the last addend of its dQ, else 0
    uint16_t bands;      // 0: every query sees every key
  } head;
  uint16_t q_head, batch;
  int32_t sum;          // the sum slot of its dQ
  int32_t slice_begin;  // of the bands
  Band bands[kBands];   // the first; the others are read from the plan
  int32_t q_at;         // the row of q_begin in the tensors
};

/// Where in the plan the decoder is. The ends are those of the unit and of the task.
struct Cursor {
  int32_t task, task_end;  // of the placement
  int32_t head, order;     // b * kv_heads + kv_head, and the index of its order
  int32_t chain, chain_end;
};

/// One KV tile with its visits.
struct Chain90 {
  enum State : int16_t { visited, empty, end };  // `end`: no more chains
  State state;
  bool continues, pauses, apart;  // as in Chain
  int32_t kv_begin, kv_rows;
  int32_t kv_at;  // the row of kv_begin in the tensors
  uint16_t batch, kv_head;
  Cursor cursor;
  int32_t run_begin, run_end;  // of its order
  int32_t key;              // index of the KV tile: (b * kv_heads + kv_head) * max_kv_tiles + tile
  int32_t to_sum;           // from a row down to its sum slot
  int32_t to_user;          // from a row down to that which had its slot before
  int32_t addend, addends;  // of the chains that share it
};

/// Everything the compiler must know.
template <class Element_, int kHeadDim_, Variant kVariant_>
struct Config {
  using Element = Element_;
  static constexpr int kHeadDim = kHeadDim_, kHeadDimV = kHeadDim == 192 ? 128 : kHeadDim;
  // Sums of dK and dV leave few registers and little shared memory: S and dP are made in two halves
  // of the queries, dQ 32 columns at a time, and dS and dQ have one buffer.
  static constexpr bool kWide = kHeadDim + kHeadDimV > 256;
  static constexpr bool kExtras = kVariant_ == Variant::extras;
  static constexpr bool kHalves = kVariant_ == Variant::halves;
  // Under masks with gaps many visits have two; there is no room for them beside tiles of 128 rows.
  static constexpr int kBands = kHalves && kHeadDim > 64 ? 2 : 1;
  static constexpr TileShape kTile = contract::tile(Pass::backward, kHeadDim, kHeadDimV);
  static constexpr int kTileQ = kTile.q, kTileKv = kTile.kv;
  static constexpr int kStages = 2;                     // of Q and dO
  static constexpr int kProductStages = kWide ? 1 : 2;  // of dS and dQ
  // Visits between the decoder and the slowest reader, as many as fit: under masks with gaps a
  // visit is a run of its own, and to look it up takes several trips to memory.
  static constexpr int kVisitRing = kHeadDim == 64 ? 8 : 16;

  // Consumer warpgroup w owns KV rows [64 w, 64 w + 64) of S^T, dP^T, dK and dV, and half of the dQ
  // tile: of its rows for head dim 64, else of its columns.
  using Atom = GMMA::Layout_K_SW128_Atom<Element>;
  template <int kDim>
  using LayoutRows = decltype(tile_to_shape(Atom{}, Shape<Int<kTileQ>, Int<kDim>, Int<kStages>>{}));
  using LayoutQ = LayoutRows<kHeadDim>;
  using LayoutDo = LayoutRows<kHeadDimV>;
  using LayoutK = decltype(tile_to_shape(Atom{}, Shape<Int<kTileKv>, Int<kHeadDim>>{}));
  using LayoutV = decltype(tile_to_shape(Atom{}, Shape<Int<kTileKv>, Int<kHeadDimV>>{}));
  using LayoutDs =
      decltype(tile_to_shape(Atom{}, Shape<Int<kTileKv>, Int<kTileQ>, Int<kProductStages>>{}));
  // The same memory seen transposed.
  template <class Layout, int kRows, int kCols, int kCount>
  using Transposed =
      decltype(composition(Layout{}, make_layout(Shape<Int<kCols>, Int<kRows>, Int<kCount>>{},
                                                 Stride<Int<kRows>, _1, Int<kRows * kCols>>{})));
  using LayoutQt = Transposed<LayoutQ, kTileQ, kHeadDim, kStages>;     // (HD, TQ, stages)
  using LayoutDot = Transposed<LayoutDo, kTileQ, kHeadDimV, kStages>;  // (HDV, TQ, stages)
  using LayoutKt = decltype(composition(
      LayoutK{}, make_layout(Shape<Int<kHeadDim>, Int<kTileKv>>{}, Stride<Int<kTileKv>, _1>{})));
  using LayoutDst = Transposed<LayoutDs, kTileKv, kTileQ, kProductStages>;  // (TQ, TKV, stages)

  static constexpr int kQueries = kWide ? kTileQ / 2 : kTileQ;  // of S and dP at once
  template <int kDim>
  using MmaScores = decltype(make_tiled_mma(
      GMMA::ss_op_selector<Element, Element, float, Shape<_128, Int<kQueries>, Int<kDim>>,
                           GMMA::Major::K, GMMA::Major::K>(),
      Layout<Shape<_2, _1, _1>>{}));
  using MmaS = MmaScores<kHeadDim>;
  using MmaDp = MmaScores<kHeadDimV>;
  // The k step that subtracts the statistics; its second half of k reads the same elements again.
  using LayoutStats = Layout<Shape<Shape<_8, Int<kTileQ / 8>>, Shape<_8, _2>>,
                             Stride<Stride<_8, _64>, Stride<_1, _0>>>;
  using MmaStats = decltype(make_tiled_mma(
      GMMA::rs_op_selector<Element, Element, float, Shape<_128, Int<kQueries>, _16>, GMMA::Major::K,
                           GMMA::Major::K>(),
      Layout<Shape<_2, _1, _1>>{}));
  template <int kDim>
  using MmaKeys = decltype(make_tiled_mma(
      GMMA::rs_op_selector<Element, Element, float, Shape<_128, Int<kDim>, Int<kTileQ>>,
                           GMMA::Major::K, GMMA::Major::MN>(),
      Layout<Shape<_2, _1, _1>>{}));
  using MmaDk = MmaKeys<kHeadDim>;
  using MmaDv = MmaKeys<kHeadDimV>;
  template <int kColumns, class Warpgroups>
  using MmaRows = decltype(make_tiled_mma(
      GMMA::ss_op_selector<Element, Element, float, Shape<_64, Int<kColumns>, Int<kTileKv>>,
                           GMMA::Major::MN, GMMA::Major::MN>(),
      Warpgroups{}));
  using MmaDq =
      std::conditional_t<kWide, MmaRows<32, Layout<Shape<_1, _1, _1>>>,
                         MmaRows<64, std::conditional_t<kHeadDim == 64, Layout<Shape<_2, _1, _1>>,
                                                        Layout<Shape<_1, _2, _1>>>>>;
  // What 64 columns of K are described by, also where 32 of them are multiplied.
  using MmaColumns = MmaRows<64, Layout<Shape<_1, _1, _1>>>;

  /// A thread's part of its warpgroup's half of dQ: so many float4, of which each 4 are 32 columns.
  static constexpr int kDqParts = kTileQ * kHeadDim / 1024;
  static constexpr int kDqPartsAtOnce = kWide ? 4 : 8;
  /// The first row and column of a half.
  static constexpr __device__ int dq_row(int half) { return kHeadDim == 64 ? 64 * half : 0; }
  static constexpr __device__ int dq_column(int half) {
    return kHeadDim == 64 ? 0 : kHeadDim / 2 * half;
  }

  static constexpr int kDqFloats = kTileQ * kHeadDim;  // of a dQ tile in the workspace
  static constexpr int kDqBytes = kDqFloats * 4;
  static constexpr uint32_t kDsBytes = kTileKv * kTileQ * 2;
  using Stat = std::conditional_t<kExtras, RowStats, uint4>;  // of a row; uint4: StatCode's
  static constexpr uint32_t kStatsBytes = kTileQ * sizeof(Stat);
  using Visit = bwd::Visit<kBands>;
  static constexpr uint32_t kRowsBytes =  // of Q and dO
      kTileQ * (kHeadDim + kHeadDimV) * 2 + kStatsBytes;

  struct SharedStorage {
    // First: the operand of StatCode reads each element twice (LayoutStats), and memcheck looks for
    // the second half behind them.
    alignas(1024) Stat stats[kTileQ];
    alignas(1024) Element k[cosize_v<LayoutK>];
    alignas(1024) Element v[cosize_v<LayoutV>];
    alignas(1024) Element q[cosize_v<LayoutQ>];
    alignas(1024) Element dout[cosize_v<LayoutDo>];
    alignas(1024) Element ds[cosize_v<LayoutDs>];
    alignas(1024) float dq[kProductStages][2]
                          [kDqFloats / 2];  // fragment order: [stage][warpgroup][i][thread][4]
    Visit visit[kVisitRing];
    Chain90 chain[kChainRing];
    uint64_t k_full, k_empty, v_full, v_empty;
    uint64_t chain_full[kChainRing], chain_empty[kChainRing];
    uint64_t visit_full[kVisitRing], visit_empty[kVisitRing];
    uint64_t rows_full[kStages], rows_empty[kStages];  // of Q, dO; full: and the statistics
    uint64_t stats_empty;
    uint64_t dq_full[kProductStages], dq_empty[kProductStages];
    uint64_t sum_full[kProductStages];  // of a last addend: dq holds the complete sum
    uint64_t ds_empty;                  // of wide heads
    uint64_t raw;                       // tiles have arrived that the loader cleans
  };
  static_assert(sizeof(SharedStorage) <= 227 * 1024);
};

}  // namespace verbatim::cuda::sm90::bwd
