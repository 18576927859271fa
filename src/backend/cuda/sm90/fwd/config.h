// The sm90 forward kernel at a glance: tile shapes, shared memory, barriers.
#pragma once

#include <cute/tensor.hpp>

#include "backend/cuda/sm90/fwd/args.h"
#include "contract/contract.h"

namespace verbatim::cuda::sm90 {

inline constexpr int kWarpgroup = 128;         // threads
inline constexpr int kRows = 64;               // query rows of a warpgroup
inline constexpr int kSwizzleSpan = 64;        // 2-byte elements in a 128-byte swizzle span
inline constexpr int kMaxShared = 227 * 1024;  // bytes a block may have

/// Numbers that follow from a shape: warpgroups, threads and how the registers are shared out.
template <class Tile>
struct FwdConfig {
  static constexpr int head_dim = Tile::head_dim, tile_q = Tile::tile_q;
  static constexpr int tile_kv = Tile::tile_kv;
  static constexpr int q_stages = Tile::q_stages, k_stages = Tile::k_stages;
  static constexpr int v_stages = Tile::v_stages;
  static constexpr int visits = 8;  // decoded visits in flight
  static constexpr int inline_bands = 4;

  static constexpr int consumers = tile_q / kRows;  // warpgroups
  static constexpr int consumer_warps = 4 * consumers;
  static constexpr int threads = kWarpgroup * (1 + consumers);
  static constexpr int producer_registers = consumers == 2 ? 56 : 32;
  static constexpr int consumer_registers = consumers == 2 ? 224 : 160;

  static_assert(contract::tile(Pass::forward, head_dim) == TileShape{tile_q, tile_kv});
  static_assert(tile_q % kRows == 0 && (consumers == 2 || consumers == 3));
  static_assert(head_dim % kSwizzleSpan == 0 && tile_kv % 16 == 0 && tile_kv <= 256);
  static_assert(producer_registers + consumers * consumer_registers <= 65536 / kWarpgroup);
};

/// A slice in a tile's own coordinates: row r sees columns [max(k_begin, r + lo), min(k_end,
/// r + hi)) if q_begin <= r < q_end. The fields of a Slice, in its order.
struct alignas(16) Band {
  int32_t q_begin, q_end, k_begin, k_end, lo, hi;
};

/// Where a chain's results go.
struct Place {
  int32_t q_begin, q_rows;  // first query of the tile, and how many belong to it
  int32_t q_at;             // the row of that query in the tensors
  int32_t q_head, kv_head, batch;
  int32_t head, q_tile;  // of the plan: batch * kv_heads + kv_head
};

/// One visit of the plan, decoded: everything that loader and consumers must know about it.
template <class Config>
struct alignas(16) Visit {
  enum Flag : uint32_t {
    first = 1,  // of its chain
    empty = 2,  // no tile: the chain has no visit, its rows see nothing
    tail = 4,   // k_used is less than tile_kv
    stop = 8,   // no visit: the end
    // Of the warpgroup's rows:
    masked = 16,  // some row does not see some key
    hidden = 32,  // no row sees any key
    fresh = 64,   // no row saw any key before in this chain (known to the warpgroup, not here)
  };
  int32_t k_begin;  // first key
  int32_t k_at;     // its row in the tensors
  int32_t k_width;  // keys that belong to the tile
  int32_t k_used;   // keys from here on are seen by no row: their V rows count as 0
  int32_t band_count;
  // Bands beyond the inline ones are read from the plan.
  const OrderView* order;
  int32_t slice_begin;
  uint32_t flags[Config::consumers];
  Place place;
  Band bands[Config::inline_bands];
};

/// Shared memory of a block. Q: 64 rows for each warpgroup; all tiles 128-byte swizzled, in
/// columns of 64 elements.
template <class Tile, class Element>
struct SharedStorage {
  using Config = FwdConfig<Tile>;

  alignas(1024) Element q[Config::q_stages][Config::tile_q * Config::head_dim];
  alignas(1024) Element k[Config::k_stages][Config::tile_kv * Config::head_dim];
  alignas(1024) Element v[Config::v_stages][Config::tile_kv * Config::head_dim];
  Visit<Config> visit[Config::visits];
  Place place;  // the decoder's: of the chain it is at

  alignas(8) uint64_t visit_full[Config::visits], visit_empty[Config::visits];
  uint64_t q_full[Config::q_stages], q_empty[Config::q_stages];
  uint64_t k_full[Config::k_stages], k_empty[Config::k_stages];
  uint64_t v_full[Config::v_stages], v_empty[Config::v_stages];
};

/// Hardware barriers. A warpgroup issues its GEMMs only in its turn, so that the others' softmax
/// runs under them; `tail` joins the threads of one warpgroup.
enum class Barrier : uint32_t { turn = 1, tail = 4 };

}  // namespace verbatim::cuda::sm90
