// Where a kernel is whose blocks of keys an index tensor names (SelectedParams): a CTA has one
// chain, and its visits are what a list says. The words are those of chains.cuh, which has a plan.
#pragma once

#include "backend/cuda/device/tiles.cuh"

namespace verbatim::cuda::tiles::lists {

/// The chain of a CTA.
struct Place {
  int32_t b, kv_head, q_head;  // in the tensors
  int32_t at;                  // the first row of its tile
  int32_t rows, used;          // that exist
  int32_t last_key;            // that the first row sees
  int32_t keys_a_row;          // that the next row sees more
  const int32_t *list, *list_end;
};

/// The start of a kernel: by all threads. Query heads that share a list are neighbours, since they
/// read the same blocks.
__device__ inline void start(Place& place, const SelectedParams& p) {
  if (threadIdx.x == 0) {
    const int32_t group = p.group(), of_list = p.chains_of_list();
    const int32_t list = blockIdx.x / of_list, tile = list % p.q_tiles, head = list / p.q_tiles;
    const int32_t query = p.q_edges[tile];
    place.b = head / p.sizes.kv_heads;
    place.kv_head = head % p.sizes.kv_heads;
    const int32_t q_head = place.kv_head * group + blockIdx.x % of_list;
    place.q_head = p.by_query ? query : q_head;
    place.at = p.by_query ? q_head : query;
    place.rows = place.used = p.by_query ? group : p.q_edges[tile + 1] - query;
    place.last_key = query + p.diagonal;
    place.keys_a_row = p.by_query ? 0 : 1;
    place.list = p.blocks + int64_t{list} * p.room;
    place.list_end = place.list + p.room;
  }
  __syncthreads();
}

/// A visit to a block of keys.
struct Visit {
  int32_t row, at;     // its first key
  int32_t rows, used;  // 0: there is none
  bool cut;

  __device__ bool exists() const { return rows > 0; }
  __device__ bool is_cut() const { return cut; }
};

/// The visits of a chain: the current one, 0, and the next kStages, in so many buffers. One thread
/// reads the list ahead of the others.
template <Pass, int kStages>
class Visits {
  static constexpr int kSlots = kStages + 2 <= 4 ? 4 : 16;  // what is cheap to divide by

 public:
  struct Slots {
    Visit visits[kSlots];
  };

  __device__ Visits(const Place& place, const int32_t* edges, Slots& slots)
      : place_(place), edges_(edges), slots_(slots), entry_(place.list) {
    if (threadIdx.x == 0) {
      next_ = entry();
      for (int slot = 0; slot <= kStages; ++slot) {
        fetch();
        slots_.visits[slot] = fetched();
      }
    }
    __syncthreads();
  }

  __device__ bool any() const { return at(0).exists(); }
  __device__ const Visit& at(int ahead) const { return slots_.visits[(slot_ + ahead) % kSlots]; }
  __device__ int buffer(int ahead) const { return (buffer_ + ahead) % kStages; }

  /// Behind a barrier of the visit: begins to read the one that advance() makes known. What is done
  /// in between hides how long that takes.
  __device__ void look_ahead() {
    if (threadIdx.x == 0) fetch();
  }
  __device__ void advance() {
    if (threadIdx.x == 0) slots_.visits[(slot_ + kStages + 1) % kSlots] = fetched();
    slot_ = (slot_ + 1) % kSlots;
    buffer_ = (buffer_ + 1) % kStages;
  }

 private:
  /// Of the list; -1 behind its last.
  __device__ int32_t entry() const { return entry_ == place_.list_end ? -1 : *entry_; }
  /// Where the next block lies, and which one follows it.
  __device__ void fetch() {
    begin_ = end_ = 0;
    if (next_ < 0) return;
    begin_ = edges_[next_];
    end_ = edges_[next_ + 1];
    ++entry_;
    next_ = entry();
  }
  __device__ Visit fetched() const {
    const int32_t rows = end_ - begin_;
    return {begin_, begin_, rows, rows, end_ - 1 > place_.last_key};
  }

  const Place& place_;
  const int32_t* edges_;
  Slots& slots_;
  const int32_t* entry_;
  int32_t next_, begin_, end_;
  int32_t slot_ = 0, buffer_ = 0;
};

/// scores = -inf for keys that lie behind a row's query, and behind the end of a block.
template <int kRows, int kCols, class Mma, class Scores>
__device__ void hide(const Mma& mma, Scores& scores, const Place& place, const Visit& visit) {
  show_only<kRows, kCols>(mma, scores, -INFINITY, [&](int32_t row, auto show) {
    show(0, min(visit.rows, place.last_key + place.keys_a_row * row + 1 - visit.row));
  });
}

}  // namespace verbatim::cuda::tiles::lists
