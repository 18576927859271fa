// What a kernel is given besides its plan: tensors, scalars, and the memory of its hand-offs.
#pragma once

#include <cstdint>

#include "backend/cuda/device/plan_view.h"
#include "core/dropout.h"

namespace verbatim::cuda {

/// A (batch, length, heads, dim) tensor on the device. Strides count elements; dim is contiguous.
/// Rows start at multiples of 16 bytes: the executor has checked it.
struct TensorRef {
  void* data;
  int64_t batch, row, head;       // strides
  const float* scales = nullptr;  // of e4m3, one a head; null: 1

  /// First element of row `l` of head `h` in batch entry `b`.
  template <class T>
  VERBATIM_HD T* at(int64_t b, int64_t l, int64_t h) const {
    return static_cast<T*>(data) + b * batch + l * row + h * head;
  }
  VERBATIM_HD float scale(int64_t h) const { return scales ? scales[h] : 1; }
};

/// The sizes of a Problem that kernels need.
struct Sizes {
  int32_t batch, q_heads, kv_heads;
  int32_t q_len, kv_len;
  int32_t head_dim, head_dim_v;

  /// Dense [batch, q_heads, q_len] index of a row: LSE, delta, and f32 accumulators of rows.
  VERBATIM_HD int64_t row_index(int64_t b, int64_t q_head, int64_t row) const {
    return (b * q_heads + q_head) * q_len + row;
  }
  /// Dense [batch, kv_heads, kv_len] index of a key.
  VERBATIM_HD int64_t key_index(int64_t b, int64_t kv_head, int64_t key) const {
    return (b * kv_heads + kv_head) * kv_len + key;
  }
};

/// The scalars of the softmax.
struct Scalars {
  float scale;       // S = scale * Q K^T
  float scale_log2;  // scale * log2(e): P = exp2(scale_log2 * Q K^T - lse * log2(e))
  float softcap;     // 0: none
  Dropout dropout;
};

/// The turn of a row whose sum is complete and has been fetched, so that its place is free.
inline constexpr int32_t kSumDone = 0x7fffffff;

/// Where a wait expired. One for each device, in pinned host memory, so that neither a launch nor
/// the replay of a graph has to be waited for; written by the first that gives up.
struct WaitReport {
  enum State : int32_t { free, published, claimed };  // claimed: being written
  static constexpr int32_t keys = -1, tickets = -2;   // instead of a query head

  int32_t state;
  int32_t pass;  // Pass
  int32_t batch, kv_head;
  int32_t q_head;     // inside the group; keys: a wait for dK and dV; tickets: for other CTAs
  int32_t tile;       // query tile (dQ, O) or KV tile (else) whose sum was waited for
  int32_t addend;     // whose turn it should have become; kSumDone: the place was never free;
                      // of tickets: how many should have been taken
  int32_t seen;       // the addend whose turn it was; the tickets that were taken
  int32_t residency;  // CTAs that the plan needs at once
};

/// Memory through which CTAs agree. All counters are zeroed in-stream before every launch.
struct HandOff {
  int32_t* ticket;        // next unit of the placement
  int32_t* aborted;       // set with the report, so that every other wait ends too
  int32_t* finished;      // CTAs that write no results any more
  int32_t* row_turn;      // [batch * q_heads * max_q_tiles]: addend whose turn it is; -1: no visit
  int32_t* key_turn;      // [batch * kv_heads * max_kv_tiles]
  int32_t max_q_tiles;    // most q_tiles of any order: row_turn's last dimension
  int32_t max_kv_tiles;   // the same for key_turn
  int32_t residency;      // CTAs that the plan needs at once, for the report
  WaitReport* report;     // of the device
  int64_t spin_limit_ns;  // longest wait of a CTA for others

  VERBATIM_HD int32_t* row(int64_t batch_q_head, int32_t q_tile) const {
    return row_turn + batch_q_head * max_q_tiles + q_tile;
  }
  VERBATIM_HD int32_t* key(int64_t head, int32_t kv_tile) const {
    return key_turn + head * max_kv_tiles + kv_tile;
  }
};

/// Sums with which a piece of a plan goes on, and which it leaves (verbatim/piece.h).
struct CarriedSums {
  float* dq;      // as Kernel::dq_sum_floats has them
  float* blocks;  // of Carry: dK, then dV of a KV tile, rows without gaps; null: the plan is whole
  int64_t block_floats;

  VERBATIM_HD float* block(int32_t number) const { return blocks + number * block_floats; }
};

struct ForwardParams {
  PlanView plan{};
  Sizes sizes;
  Scalars scalars;
  TensorRef q, k, v, o;
  float* lse;  // [batch, q_heads, q_len]
  HandOff hand_off{};
  void* workspace = nullptr;  // Kernel::workspace_bytes, 256-byte aligned, holding anything
};

/// A forward without a plan, over blocks of keys that lists name (verbatim/selected.h).
struct SelectedParams {
  Sizes sizes;
  Scalars scalars;
  TensorRef q, k, v, o;
  TensorRef lse;            // f32
  const int32_t* blocks;    // [batch, kv_heads, q_tiles, room]; -1 behind the last of a list
  const int32_t* q_edges;   // [q_tiles + 1]
  const int32_t* kv_edges;  // [kv_tiles + 1]
  int32_t q_tiles, room;
  int32_t diagonal;  // query q sees no key behind q + diagonal
  // A tile is one query, and the heads of a group are its rows: what q, o and lse call a row is a
  // query head, and what they call a head is a query. Else a list is of all heads of a group.
  bool by_query;
  int32_t q_rows, q_heads;  // rows and heads as q, o and lse have them

  VERBATIM_HD int32_t group() const { return sizes.q_heads / sizes.kv_heads; }
  VERBATIM_HD int32_t chains_of_list() const { return by_query ? 1 : group(); }
  VERBATIM_HD int64_t chains() const {
    return int64_t{sizes.batch} * sizes.kv_heads * q_tiles * chains_of_list();
  }
};

struct BackwardParams {
  PlanView plan{};
  Sizes sizes;
  Scalars scalars;
  TensorRef q, k, v, o, dout;
  const float* lse;  // [batch, q_heads, q_len]
  TensorRef dq, dk, dv;
  CarriedSums carried{};
  HandOff hand_off{};
  void* workspace = nullptr;  // Kernel::workspace_bytes, 256-byte aligned, holding anything
};

}  // namespace verbatim::cuda
