// The walk along a chain in steps of at most kBlock rows of the streamed axis, and what each step
// may see.
#pragma once

#include "backend/cuda/device/plan_view.h"

namespace verbatim::cuda {

/// Up to kBlock consecutive rows of one visited tile.
struct Step {
  int32_t row;         // first row, on the streamed axis
  int32_t at;          // that row in the tensors
  int32_t rows;        // rows that exist
  int32_t used;        // of them up to the last that the mask shows: the others count as 0
  int32_t q_head;      // inside the group
  int32_t tile;        // the visited tile
  int32_t addend;      // backward: place in the sum of the visited tile's rows
  bool first, last;    // step of its tile
  const int32_t* ids;  // slices that cut the tile
  int32_t id_count;    // 0: all is visible
};

template <int kBlock>
class Steps {
 public:
  /// `edges`, `rows` and `used` are those of the streamed axis.
  __device__ Steps(const OrderView& order, const Chain& chain, const int64_t* edges,
                   const int64_t* rows, const int32_t* used)
      : run_(order.runs + chain.run_begin),
        end_(order.runs + chain.run_end),
        ids_(order.slice_ids),
        edges_(edges),
        rows_(rows),
        used_(used) {}

  __device__ bool next(Step& step) {
    if (run_ == end_) return false;
    const int32_t tile = run_->first + visit_ * run_->step;
    const auto begin = static_cast<int32_t>(edges_[tile]) + done_;
    const int32_t left = static_cast<int32_t>(edges_[tile + 1]) - begin;
    step = {.row = begin,
            .at = static_cast<int32_t>(rows_[tile]) + done_,
            .rows = min(left, kBlock),
            .used = min(max(used_[tile] - done_, 0), kBlock),
            .q_head = run_->q_head,
            .tile = tile,
            .addend = run_->addend + visit_ / run_->addend_every * run_->addend_step,
            .first = done_ == 0,
            .last = left <= kBlock,
            .ids = ids_ + run_->slice_begin,
            .id_count = run_->slice_count};
    done_ += kBlock;
    if (!step.last) return true;
    done_ = 0;
    if (++visit_ < run_->count) return true;
    visit_ = 0;
    ++run_;
    return true;
  }

 private:
  const Run *run_, *end_;
  const int32_t* ids_;
  const int64_t *edges_, *rows_;
  const int32_t* used_;
  int32_t visit_ = 0, done_ = 0;
};

/// A block of the score matrix: its corner and the rows and columns that exist.
struct Block {
  int64_t q, k;
  int32_t q_rows, k_rows;
};

/// `value` as an offset inside a block, with all that lies far outside brought near.
__device__ inline int32_t nearby(int64_t value) {
  constexpr int64_t kFar = 1 << 20;
  return static_cast<int32_t>(value < -kFar ? -kFar : value > kFar ? kFar : value);
}

/// Columns [begin, end) of a row.
struct Columns {
  int32_t begin, end;
};

/// What a slice shows of row `row` of a block.
__device__ inline Columns seen_columns(const Slice& slice, const Block& block, int32_t row) {
  if (row < slice.q_begin - block.q || row >= slice.q_end - block.q) return {0, 0};
  const int64_t diagonal = block.q - block.k + row;  // k - q = lo at column diagonal + lo
  const int32_t begin = max(nearby(slice.k_begin - block.k), nearby(slice.lo + diagonal));
  const int32_t end = min(nearby(slice.k_end - block.k), nearby(slice.hi + diagonal + 1));
  return {max(begin, 0), min(end, block.k_rows)};
}

/// Visible elements of an accumulator of mma.m16n8k16 in a block: bit 4 n + 2 i + j stands for
/// (row + 8 i, col + 8 n + j), n < kColumns.
template <int kColumns>
__device__ uint32_t visible(const OrderView& order, const Step& step, const Block& block,
                            int32_t row, int32_t col) {
  static_assert(kColumns <= 8);
  uint32_t bits = 0;
  const auto add = [&](int32_t i, int32_t begin, int32_t end) {  // columns [begin, end) of row i
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int32_t c = col + 8 * n + j;
        bits |= static_cast<uint32_t>(begin <= c && c < end) << (4 * n + 2 * i + j);
      }
    }
  };
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int32_t r = row + 8 * i;
    if (r >= block.q_rows) continue;
    if (step.id_count == 0) add(i, 0, block.k_rows);
    for (int32_t s = 0; s < step.id_count; ++s) {
      const Columns seen = seen_columns(order.slices[step.ids[s]], block, r);
      add(i, seen.begin, seen.end);
    }
  }
  return bits;
}

}  // namespace verbatim::cuda
