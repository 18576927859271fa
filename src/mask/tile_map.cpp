#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "mask/slice.h"
#include "mask/small_blocks.h"
#include "mask/tile_index.h"
#include "verbatim/error.h"

namespace verbatim {
namespace {

std::vector<int64_t> cut(int64_t length, int64_t tile, std::span<const int64_t> breaks) {
  std::vector<int64_t> edges{0};
  const auto cut_until = [&](int64_t end) {
    while (end - edges.back() > tile) edges.push_back(edges.back() + tile);
    if (edges.back() < end) edges.push_back(end);
  };
  for (const int64_t edge : breaks) cut_until(edge);
  cut_until(length);
  return edges;
}

/// The breaks of an axis, and where the padding of its sequences begins and ends.
std::vector<int64_t> edges_of_parts(std::vector<int64_t> breaks,
                                    std::span<const Sequence> sequences,
                                    std::initializer_list<Interval Sequence::*> extents) {
  for (const Sequence& s : sequences) {
    for (const auto extent : extents)
      breaks.insert(breaks.end(), {(s.*extent).begin, (s.*extent).end});
  }
  std::ranges::sort(breaks);
  return breaks;
}

/// What one slice does to the tiles of one column. A convex slice touches an interval of them, and
/// in an interval inside that one it is solid: it holds all rows of the tile at `width` keys.
struct Piece {
  int32_t first, last;              // tiles touched
  int32_t solid_first, solid_last;  // empty: solid_first == solid_last == last
  int32_t id;
  int32_t width;  // keys

  bool solid(int32_t tile) const { return solid_first <= tile && tile < solid_last; }
  /// First tile after `tile` at which the piece changes.
  int32_t next(int32_t tile) const {
    if (tile < solid_first) return solid_first;
    return tile < solid_last ? solid_last : last;
  }
};

/// Finds the runs of all columns; on transposed slices, those of all rows.
class RunBuilder {
 public:
  enum class Of { columns, rows };

  RunBuilder(std::span<const Slice> slices, std::span<const int64_t> q_edges,
             std::span<const int64_t> kv_edges, std::vector<int32_t>& slice_ids, Of of)
      : slices_(slices),
        q_edges_(of == Of::columns ? q_edges : kv_edges),
        kv_edges_(of == Of::columns ? kv_edges : q_edges),
        q_tiles_(q_edges_),
        slice_ids_(slice_ids),
        of_(of) {}

  void build(std::vector<int32_t>& begin, std::vector<TileRun>& runs) {
    const std::vector<int32_t> piece_begin = list_pieces();
    begin.assign(1, 0);
    runs.reserve(pieces_.size());
    for (size_t column = 0; column + 1 < kv_edges_.size(); ++column) {
      const std::span<Piece> pieces = std::span(pieces_).subspan(
          piece_begin[column], piece_begin[column + 1] - piece_begin[column]);
      sweep(pieces, kv_edges_[column], kv_edges_[column + 1], runs, begin.back());
      begin.push_back(static_cast<int32_t>(runs.size()));
    }
  }

 private:
  Slice slice(int32_t id) const {
    return of_ == Of::columns ? slices_[id] : transpose(slices_[id]);
  }

  /// Fills `pieces_` column by column, in each in the order of slices: where those of a column are.
  std::vector<int32_t> list_pieces() {
    const TileIndex columns(kv_edges_);
    const auto for_each_touch = [&](auto&& f) {
      for (int32_t id = 0; id < std::ssize(slices_); ++id) {
        const auto s = tighten(slice(id));
        if (!s) continue;
        const int32_t last = columns.at(s->k_end - 1);
        for (int32_t column = columns.at(s->k_begin); column <= last; ++column) f(column, id, *s);
      }
    };
    std::vector<int32_t> begin(kv_edges_.size());
    for_each_touch([&](int32_t column, int32_t, const Slice&) { ++begin[column]; });
    std::exclusive_scan(begin.begin(), begin.end(), begin.begin(), 0);
    pieces_.resize(begin.back());
    for_each_touch([&](int32_t column, int32_t id, const Slice& s) {
      pieces_[begin[column]++] = piece_of(id, s, kv_edges_[column], kv_edges_[column + 1]);
    });
    std::shift_right(begin.begin(), begin.end(), 1);  // each has become the next one's
    begin.front() = 0;
    return begin;
  }

  static int32_t count(int64_t begin, int64_t end) { return static_cast<int32_t>(end - begin); }

  /// As below, where all rows see the same `width` keys.
  Piece piece_of_rectangle(int32_t id, const Slice& s, int32_t width) const {
    const int32_t first = q_tiles_.at(s.q_begin), last = q_tiles_.at(s.q_end - 1) + 1;
    const int32_t solid_first = first + (q_edges_[first] < s.q_begin);
    const int32_t solid_last = last - (q_edges_[last] > s.q_end);
    if (solid_first >= solid_last) return {first, last, last, last, id, width};
    return {first, last, solid_first, solid_last, id, width};
  }

  /// Of a tightened slice that touches the column; its band may leave nothing there.
  Piece piece_of(int32_t id, const Slice& whole, int64_t k_begin, int64_t k_end) const {
    if (is_rectangle(whole))
      return piece_of_rectangle(
          id, whole, count(std::max(whole.k_begin, k_begin), std::min(whole.k_end, k_end)));
    const auto tight = tighten(clip(whole, {whole.q_begin, whole.q_end, k_begin, k_end}));
    if (!tight) return {0, 0, 0, 0, id, 0};
    const Slice& s = *tight;
    const int32_t last = q_tiles_.at(s.q_end - 1) + 1;
    Piece piece{q_tiles_.at(s.q_begin), last, last, last, id, count(s.k_begin, s.k_end)};
    const int64_t solid_begin = std::max(s.q_begin, s.k_end - 1 - s.hi);
    const int64_t solid_end = std::min(s.q_end, s.k_begin - s.lo + 1);
    if (solid_begin < solid_end) {
      int32_t solid_first = q_tiles_.at(solid_begin);
      if (q_edges_[solid_first] < solid_begin) ++solid_first;
      const int32_t solid_last = q_tiles_.at(solid_end);
      if (solid_first < solid_last) {
        piece.solid_first = solid_first;
        piece.solid_last = solid_last;
      }
    }
    return piece;
  }

  /// Splits the column wherever a piece changes and classifies each part at once.
  void sweep(std::span<Piece> pieces, int64_t k_begin, int64_t k_end, std::vector<TileRun>& runs,
             int32_t column_begin) {
    const auto before = [](const Piece& a, const Piece& b) {
      return a.first != b.first ? a.first < b.first : a.id < b.id;
    };
    const auto end =
        std::remove_if(pieces.begin(), pieces.end(), [](const Piece& p) { return p.last == 0; });
    pieces = pieces.first(end - pieces.begin());
    if (!std::ranges::is_sorted(pieces, before)) std::ranges::sort(pieces, before);
    active_.clear();
    size_t next = 0;
    int32_t tile = 0;
    while (next < pieces.size() || !active_.empty()) {
      if (active_.empty()) {
        const Piece& p = pieces[next];
        if (next + 1 == pieces.size() || p.last <= pieces[next + 1].first) {  // alone
          const bool fills = p.width == k_end - k_begin;
          append(runs, column_begin, {p.first, p.solid_first, p.id, 1});
          append(runs, column_begin, {p.solid_first, p.solid_last, fills ? 0 : p.id, !fills});
          append(runs, column_begin, {p.solid_last, p.last, p.id, 1});
          ++next;
          continue;
        }
        tile = p.first;
      }
      while (next < pieces.size() && pieces[next].first <= tile) {
        active_.push_back(pieces[next++]);
      }
      int32_t end = next < pieces.size() ? pieces[next].first : INT32_MAX;
      int64_t solid_width = 0;
      bool all_solid = true;
      for (const Piece& p : active_) {
        end = std::min(end, p.next(tile));
        solid_width += p.width;
        all_solid = all_solid && p.solid(tile);
      }
      if (all_solid) {
        append_active(runs, column_begin, tile, end, solid_width == k_end - k_begin);
      } else if (active_.size() == 1) {
        append_active(runs, column_begin, tile, end, false);
      } else {  // few tiles: here a band or a slice's end crosses a tile that slices share
        for (int32_t t = tile; t < end; ++t) {
          append_active(runs, column_begin, t, t + 1, is_full(t, k_begin, k_end));
        }
      }
      tile = end;
      std::erase_if(active_, [&](const Piece& p) { return p.last <= tile; });
    }
  }

  bool is_full(int32_t tile, int64_t k_begin, int64_t k_end) const {
    const int64_t q_begin = q_edges_[tile], q_end = q_edges_[tile + 1];
    int64_t area = 0;
    for (const Piece& p : active_) {
      area += clip(slice(p.id), {q_begin, q_end, k_begin, k_end}).area();
    }
    return area == (q_end - q_begin) * (k_end - k_begin);
  }

  void append_active(std::vector<TileRun>& runs, int32_t column_begin, int32_t first, int32_t last,
                     bool full) {
    const auto count = static_cast<int32_t>(active_.size());
    append(runs, column_begin,
           full ? TileRun{first, last, 0, 0} : TileRun{first, last, list_of_active(), count});
  }

  /// Adds a run behind its neighbour, or to it when both are cut by the same slices.
  static void append(std::vector<TileRun>& runs, int32_t column_begin, const TileRun& run) {
    if (run.first >= run.last) return;
    if (static_cast<int32_t>(runs.size()) > column_begin) {
      TileRun& previous = runs.back();
      if (previous.last == run.first && previous.slice_begin == run.slice_begin &&
          previous.slice_count == run.slice_count) {
        previous.last = run.last;
        return;
      }
    }
    runs.push_back(run);
  }

  /// Where the ids of the active slices stand in `slice_ids`. Its start lists all slices, so that
  /// neighbours need no list of their own; else the latest list is shared if it is the same.
  int32_t list_of_active() {
    if (active_.size() == 1) return active_.front().id;
    ids_.clear();
    for (const Piece& p : active_) ids_.push_back(p.id);
    std::sort(ids_.begin(), ids_.end());
    if (ids_.back() - ids_.front() + 1 == static_cast<int32_t>(ids_.size())) return ids_.front();
    const std::span<const int32_t> latest(slice_ids_.data() + latest_, slice_ids_.size() - latest_);
    if (latest_ < slices_.size() || !std::ranges::equal(latest, ids_)) {
      latest_ = slice_ids_.size();
      slice_ids_.insert(slice_ids_.end(), ids_.begin(), ids_.end());
    }
    return static_cast<int32_t>(latest_);
  }

  std::span<const Slice> slices_;
  std::span<const int64_t> q_edges_, kv_edges_;
  TileIndex q_tiles_;
  std::vector<int32_t>& slice_ids_;
  Of of_;
  std::vector<Piece> pieces_;  // of all columns
  std::vector<Piece> active_;
  std::vector<int32_t> ids_;
  size_t latest_ = 0;
};

/// The tiles between two edges.
TileRange tiles_of(const std::vector<int64_t>& edges, Interval positions) {
  const auto at = [&](int64_t edge) {
    return static_cast<int32_t>(std::ranges::lower_bound(edges, edge) - edges.begin());
  };
  return {at(positions.begin), at(positions.end)};
}

/// Of the two halves of `all`, the first of `keys` keys, those that kernels leave out: both where
/// nothing is seen, one where all of the other is.
int hidden_halves(std::span<const Slice> slices, std::span<const int32_t> ids, const Slice& all,
                  int64_t keys) {
  int64_t seen[2] = {0, 0};
  const Slice half[2] = {
      {all.q_begin, all.q_end, all.k_begin, std::min(all.k_begin + keys, all.k_end)},
      {all.q_begin, all.q_end, std::min(all.k_begin + keys, all.k_end), all.k_end}};
  for (const int32_t i : ids)
    for (int h = 0; h < 2; ++h) seen[h] += clip(slices[i], half[h]).area();
  if (seen[0] + seen[1] == 0) return 2;
  const bool one =
      seen[0] == 0 ? seen[1] == half[1].area() : seen[1] == 0 && seen[0] == half[0].area();
  return one ? 1 : 0;
}

}  // namespace

int64_t count_tiles(std::span<const TileRun> runs) {
  int64_t count = 0;
  for (const TileRun& run : runs) count += run.last - run.first;
  return count;
}

TileMap::TileMap(const HeadMask& mask, TileShape tile_shape, std::vector<Sequence> own)
    : TileMap(mask, tile_shape, std::move(own),
              std::make_shared<const std::vector<Slice>>(mask.slices)) {}

TileMap::TileMap(const Mask& mask, size_t variant, TileShape tile_shape)
    : TileMap(mask.variants().at(variant), tile_shape,
              verbatim::sequences(mask.variants()[variant]), mask.slices(variant)) {}

TileMap::TileMap(const HeadMask& mask, TileShape tile_shape, std::vector<Sequence> own,
                 std::shared_ptr<const std::vector<Slice>> shared)
    : shape(tile_shape), sequences(std::move(own)), slices_(std::move(shared)) {
  if (shape.q < 1 || shape.kv < 1) {
    throw Error(ErrorCode::invalid_argument, "mask.tile", "a tile must not be empty",
                {.argument = "tile",
                 .got = fmt::format("{} x {}", shape.q, shape.kv),
                 .expected = "1 or more queries and keys",
                 .nearest = ""});
  }
  // A slice outside the plane would be written outside the lists.
  const auto is_outside = [&](const Slice& s) {
    return s.q_begin < 0 || s.k_begin < 0 || s.q_end > mask.q_len || s.k_end > mask.kv_len;
  };
  if (std::ranges::any_of(slices(), is_outside)) mask.validate();
  q_edges = cut(mask.q_len, shape.q,
                edges_of_parts(mask.q_breaks, sequences, {&Sequence::q, &Sequence::core}));
  q_padding = mask.q_padding;
  k_padding = mask.k_padding;
  kv_edges = cut(mask.kv_len, shape.kv, edges_of_parts(mask.k_breaks, sequences, {&Sequence::k}));
  slice_ids.resize(slices().size());
  std::iota(slice_ids.begin(), slice_ids.end(), 0);

  if (is_of_small_blocks(slices(), shape)) {
    list_rows(slices(), q_edges, kv_edges, slice_ids, row_begin, rows);
    list_columns(row_begin, rows, slice_ids, kv_edges.size() - 1, column_begin, columns);
    return;
  }
  using Of = RunBuilder::Of;
  RunBuilder(slices(), q_edges, kv_edges, slice_ids, Of::columns).build(column_begin, columns);
  RunBuilder(slices(), q_edges, kv_edges, slice_ids, Of::rows).build(row_begin, rows);
}

std::vector<TileMap::Part> TileMap::parts() const {
  std::vector<Part> parts;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& s = sequences[i];
    const bool last = i + 1 == sequences.size();
    const Interval queries{s.q_begin, last ? q_edges.back() : sequences[i + 1].q_begin};
    const Interval keys{s.k_begin, last ? kv_edges.back() : sequences[i + 1].k_begin};
    const auto add = [&](Interval q, Interval k, Interval core, bool padding) {
      if (padding && q.begin == q.end && k.begin == k.end) return;
      parts.push_back({tiles_of(q_edges, q), tiles_of(kv_edges, k), core});
    };
    const Interval q_before{queries.begin, s.q.begin}, q_after{s.q.end, queries.end};
    add(q_before, {keys.begin, s.k.begin}, q_before, true);
    add(s.q, s.k, s.core, false);
    add(q_after, {s.k.end, keys.end}, q_after, true);
  }
  return parts;
}

TileMap TileMap::part(const Part& of) const {
  TileMap part;
  part.shape = shape;
  const auto copy_edges = [](const std::vector<int64_t>& edges, TileRange tiles,
                             std::vector<int64_t>& part_edges) {
    const auto first = edges.begin() + tiles.first;
    part_edges.assign(first, first + tiles.count() + 1);
    for (int64_t& edge : part_edges) edge -= *first;
  };
  copy_edges(q_edges, of.q, part.q_edges);
  copy_edges(kv_edges, of.kv, part.kv_edges);
  // What the runs of the lines `kept` hold of the tiles `streamed`.
  const auto copy = [](const std::vector<int32_t>& begin, const std::vector<TileRun>& runs,
                       TileRange kept, TileRange streamed, std::vector<int32_t>& part_begin,
                       std::vector<TileRun>& part_runs) {
    part_begin.assign(1, 0);
    for (int32_t line = kept.first; line < kept.last; ++line) {
      for (int32_t r = begin[line]; r < begin[line + 1]; ++r) {
        TileRun run = runs[r];
        run.first = std::max(run.first, streamed.first) - streamed.first;
        run.last = std::min(run.last, streamed.last) - streamed.first;
        if (run.first < run.last) part_runs.push_back(run);
      }
      part_begin.push_back(static_cast<int32_t>(part_runs.size()));
    }
  };
  copy(column_begin, columns, of.kv, of.q, part.column_begin, part.columns);
  copy(row_begin, rows, of.q, of.kv, part.row_begin, part.rows);
  const int64_t first_row = q_edges[of.q.first];
  part.sequences = {{.q = {0, part.q_edges.back()},
                     .k = {0, part.kv_edges.back()},
                     .core = {of.core.begin - first_row, of.core.end - first_row}}};
  return part;
}

TileRange TileMap::core_q_tiles() const { return tiles_of(q_edges, sequences.front().core); }

TileMap TileMap::core() const {
  const Sequence& s = sequences.front();
  return part({core_q_tiles(), tiles_of(kv_edges, s.k), s.core});
}

std::span<const TileRun> TileMap::column(int32_t kv_tile) const {
  return std::span(columns).subspan(column_begin[kv_tile],
                                    column_begin[kv_tile + 1] - column_begin[kv_tile]);
}

std::span<const TileRun> TileMap::row(int32_t q_tile) const {
  return std::span(rows).subspan(row_begin[q_tile], row_begin[q_tile + 1] - row_begin[q_tile]);
}

int64_t TileMap::bytes() const {
  return static_cast<int64_t>(
      (q_edges.size() + kv_edges.size()) * sizeof(int64_t) +
      (column_begin.size() + row_begin.size() + slice_ids.size()) * sizeof(int32_t) +
      (columns.size() + rows.size()) * sizeof(TileRun) + sequences.size() * sizeof(Sequence));
}

int64_t TileMap::count() const { return count_tiles(columns); }

int64_t TileMap::count_full() const {
  int64_t count = 0;
  for (const TileRun& run : columns)
    if (run.full()) count += run.last - run.first;
  return count;
}

bool TileMap::has_gaps() const {
  int64_t stretches = 0;
  for (int32_t kv_tile = 0; kv_tile < kv_tiles(); ++kv_tile) {
    int32_t end = -1;
    for (const TileRun& run : column(kv_tile)) {
      stretches += run.first != end;
      end = run.last;
    }
  }
  return stretches >= 4 * int64_t{kv_tiles()};
}

double TileMap::shown_by_blocks() const {
  constexpr int32_t kSampled = 32;  // query tiles
  constexpr int64_t kRows = 64, kKeys = 64;
  int64_t visits = 0, cut = 0, halves = 0, left = 0;  // halves of tiles, for each 64 rows
  for (int32_t q = 0; q < q_tiles(); q += std::max(1, q_tiles() / kSampled)) {
    const int64_t rows = (q_edges[q + 1] - q_edges[q] + kRows - 1) / kRows;
    for (const TileRun& run : row(q)) {
      const int32_t count = run.last - run.first;
      visits += count;
      halves += 2 * rows * count;
      left += 2 * rows * count;
      const auto ids = std::span(slice_ids).subspan(run.slice_begin, run.slice_count);
      if (run.full() ||
          !std::ranges::all_of(ids, [&](int32_t i) { return is_rectangle(slices()[i]); }))
        continue;
      cut += count;
      for (int32_t k = run.first; k < run.last; ++k)
        for (int64_t r = q_edges[q]; r < q_edges[q + 1]; r += kRows)
          left -= hidden_halves(
              slices(), ids, {r, std::min(r + kRows, q_edges[q + 1]), kv_edges[k], kv_edges[k + 1]},
              kKeys);
    }
  }
  return 4 * cut < visits || visits == 0 ? 1
                                         : static_cast<double>(left) / static_cast<double>(halves);
}

}  // namespace verbatim
