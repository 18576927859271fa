#include "mask/small_blocks.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "mask/slice.h"
#include "mask/tile_index.h"

namespace verbatim {
namespace {

constexpr double kFewTiles = 8;  // a slice, in the mean

/// Whether `next`, of the next tile, is cut by the same slices as `run`.
bool goes_on(const TileRun& run, const TileRun& next, std::span<const int32_t> slice_ids) {
  if (run.last != next.first || run.slice_count != next.slice_count) return false;
  const auto ids = slice_ids.begin();
  return run.slice_begin == next.slice_begin ||
         std::equal(ids + run.slice_begin, ids + run.slice_begin + run.slice_count,
                    ids + next.slice_begin);
}

/// The slices that touch each tile of one row.
class Strip {
 public:
  explicit Strip(std::span<const int64_t> kv_edges)
      : kv_edges_(kv_edges),
        tile_of_(kv_edges),
        cells_(kv_edges.size() - 1),
        touched_((cells_.size() + 63) / 64) {}

  /// Appends the runs of a row that sees one band only: slices side by side in the same queries,
  /// from id `first` on; `tall`: in all of the row's.
  void list_band(std::span<const Slice> band, int32_t first, bool tall,
                 std::vector<TileRun>& rows) const {
    const size_t row_begin = rows.size();
    int32_t tile = -1;
    for (auto s = band.begin(); s != band.end();) {
      ++tile;
      if (kv_edges_[tile + 1] <= s->k_begin) tile = tile_of_.at(s->k_begin);
      const int64_t begin = kv_edges_[tile], end = kv_edges_[tile + 1];
      const auto id = first + static_cast<int32_t>(s - band.begin());
      int64_t hidden = end - begin;
      int32_t count = 0;
      while (s != band.end() && s->k_begin < end) {
        ++count;
        hidden -= std::min(s->k_end, end) - std::max(s->k_begin, begin);
        if (s->k_end > end) break;  // it goes on into the next tile
        ++s;
      }
      const TileRun run =
          tall && hidden == 0 ? TileRun{tile, tile + 1, 0, 0} : TileRun{tile, tile + 1, id, count};
      TileRun* const before = rows.size() > row_begin ? &rows.back() : nullptr;
      if (before && before->last == tile && before->slice_begin == run.slice_begin &&
          before->slice_count == run.slice_count) {
        before->last = run.last;
      } else {
        rows.push_back(run);
      }
    }
  }

  /// Of a slice, `height` of whose rows are in this row of tiles. Ids ascend.
  void add(const Slice& s, int32_t id, int64_t height) {
    for (int32_t tile = tile_of_.at(s.k_begin);
         tile < std::ssize(cells_) && kv_edges_[tile] < s.k_end; ++tile) {
      Cell& cell = cells_[tile];
      if (cell.count++ == 0) touched_[tile / 64] |= uint64_t{1} << (tile % 64);
      cell.area +=
          height * (std::min(s.k_end, kv_edges_[tile + 1]) - std::max(s.k_begin, kv_edges_[tile]));
      touches_.push_back({id, cell.latest});
      cell.latest = static_cast<int32_t>(touches_.size()) - 1;
    }
  }

  /// Appends the runs of this row, `height` queries high, and begins the next.
  void finish(int64_t height, std::vector<int32_t>& slice_ids, std::vector<TileRun>& rows) {
    const size_t row_begin = rows.size();
    for (size_t word = 0; word < touched_.size(); ++word) {
      for (; touched_[word] != 0; touched_[word] &= touched_[word] - 1) {
        const auto tile = static_cast<int32_t>(word * 64) + std::countr_zero(touched_[word]);
        const size_t listed = slice_ids.size();
        const bool full = cells_[tile].area == height * (kv_edges_[tile + 1] - kv_edges_[tile]);
        const TileRun run = full ? TileRun{tile, tile + 1, 0, 0} : cut_tile(tile, slice_ids);
        cells_[tile] = {};
        if (rows.size() > row_begin && goes_on(rows.back(), run, slice_ids)) {
          rows.back().last = run.last;
          slice_ids.resize(listed);
        } else {
          rows.push_back(run);
        }
      }
    }
    touches_.clear();
  }

 private:
  struct Cell {
    int64_t area = 0;                // visible positions
    int32_t count = 0, latest = -1;  // of its touches
  };
  struct Touch {
    int32_t id, before;  // into touches_, -1: none
  };

  /// Neighbours stand at the start of `slice_ids`, which lists all slices.
  TileRun cut_tile(int32_t tile, std::vector<int32_t>& slice_ids) const {
    const Cell& cell = cells_[tile];
    const size_t begin = slice_ids.size();
    for (int32_t t = cell.latest; t >= 0; t = touches_[t].before)
      slice_ids.push_back(touches_[t].id);
    const int32_t first = slice_ids.back();
    const bool neighbours = slice_ids[begin] - first + 1 == cell.count;
    if (neighbours) slice_ids.resize(begin);
    std::reverse(slice_ids.begin() + static_cast<ptrdiff_t>(begin), slice_ids.end());
    return {tile, tile + 1, neighbours ? first : static_cast<int32_t>(begin), cell.count};
  }

  std::span<const int64_t> kv_edges_;
  TileIndex tile_of_;
  std::vector<Cell> cells_;        // [kv_tiles]
  std::vector<uint64_t> touched_;  // a bit a cell
  std::vector<Touch> touches_;
};

}  // namespace

bool in_rows(std::span<const Slice> slices) {
  for (size_t i = 1; i < slices.size(); ++i) {
    const Slice &a = slices[i - 1], &b = slices[i];
    const bool beside = a.q_begin == b.q_begin && a.q_end == b.q_end && a.k_end <= b.k_begin;
    if (!beside && a.q_end > b.q_begin) return false;
  }
  return true;
}

bool is_of_small_blocks(std::span<const Slice> slices, TileShape shape) {
  double area = 0;
  int64_t rows = 0, keys = 0;
  for (const Slice& s : slices) {
    const int64_t high = s.q_end - s.q_begin, wide = s.k_end - s.k_begin;
    if (!is_rectangle(s) || high <= 0 || wide <= 0) return false;
    area += static_cast<double>(high * wide);  // of kMaxLength squared at most
    rows += high;
    keys += wide;
  }
  // The sum of (high / shape.q + 1) * (wide / shape.kv + 1).
  const auto q = static_cast<double>(shape.q), kv = static_cast<double>(shape.kv);
  const auto count = static_cast<double>(slices.size());
  const double tiles =
      area / q / kv + static_cast<double>(rows) / q + static_cast<double>(keys) / kv + count;
  return tiles <= kFewTiles * count && in_rows(slices);
}

void list_rows(std::span<const Slice> slices, std::span<const int64_t> q_edges,
               std::span<const int64_t> kv_edges, std::vector<int32_t>& slice_ids,
               std::vector<int32_t>& begin, std::vector<TileRun>& rows) {
  begin.assign(1, 0);
  rows.reserve(slices.size());
  Strip strip(kv_edges);
  size_t top = 0;                 // slices before it end above
  size_t latest = slices.size();  // `top` of the latest row that one band fills
  for (size_t q_tile = 0; q_tile + 1 < q_edges.size(); ++q_tile) {
    const int64_t q_begin = q_edges[q_tile], q_end = q_edges[q_tile + 1];
    while (top < slices.size() && slices[top].q_end <= q_begin) ++top;
    size_t end = top;
    while (end < slices.size() && slices[end].q_begin == slices[top].q_begin) ++end;
    if (end == slices.size() || slices[end].q_begin >= q_end) {
      if (top < end && slices[top].q_begin < q_end) {
        const bool tall = slices[top].q_begin <= q_begin && q_end <= slices[top].q_end;
        if (tall && latest == top) {
          for (int32_t r = begin[q_tile - 1]; r < begin[q_tile]; ++r)
            rows.push_back(TileRun(rows[r]));
        } else {
          strip.list_band(slices.subspan(top, end - top), static_cast<int32_t>(top), tall, rows);
        }
        latest = tall ? top : slices.size();
      }
    } else {
      for (end = top; end < slices.size() && slices[end].q_begin < q_end; ++end) {
        const Slice& s = slices[end];
        strip.add(s, static_cast<int32_t>(end),
                  std::min(s.q_end, q_end) - std::max(s.q_begin, q_begin));
      }
      strip.finish(q_end - q_begin, slice_ids, rows);
    }
    begin.push_back(static_cast<int32_t>(rows.size()));
  }
}

void list_columns(std::span<const int32_t> row_begin, std::span<const TileRun> rows,
                  std::span<const int32_t> slice_ids, size_t kv_tiles, std::vector<int32_t>& begin,
                  std::vector<TileRun>& columns) {
  const auto for_each_tile = [&](auto&& f) {
    for (int32_t row = 0; row + 1 < std::ssize(row_begin); ++row)
      for (int32_t r = row_begin[row]; r < row_begin[row + 1]; ++r)
        for (int32_t tile = rows[r].first; tile < rows[r].last; ++tile)
          f(tile, TileRun{row, row + 1, rows[r].slice_begin, rows[r].slice_count});
  };
  // Room for each tile by itself, then without what has joined its neighbour.
  begin.assign(kv_tiles + 1, 0);
  for_each_tile([&](int32_t tile, const TileRun&) { ++begin[tile + 1]; });
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  columns.resize(begin.back());
  std::vector<int32_t> next(begin.begin(), begin.end() - 1);
  for_each_tile([&](int32_t tile, const TileRun& run) {
    if (next[tile] > begin[tile] && goes_on(columns[next[tile] - 1], run, slice_ids)) {
      columns[next[tile] - 1].last = run.last;
    } else {
      columns[next[tile]++] = run;
    }
  });
  auto end = columns.begin();
  for (size_t tile = 0; tile < kv_tiles; ++tile) {
    const auto first = columns.begin() + begin[tile], last = columns.begin() + next[tile];
    begin[tile] = static_cast<int32_t>(end - columns.begin());
    end = first == end ? last : std::copy(first, last, end);
  }
  begin.back() = static_cast<int32_t>(end - columns.begin());
  columns.erase(end, columns.end());
}

}  // namespace verbatim
