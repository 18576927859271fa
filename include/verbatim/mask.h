// Masks as sets of disjoint slices, and what tiling makes of them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace verbatim {

/// The visible positions of a rectangle cut by a diagonal band:
///   q in [q_begin, q_end), k in [k_begin, k_end), lo <= k - q <= hi.
struct Slice {
  static constexpr int64_t kNoLow = INT64_MIN / 4;   // a band that is open below
  static constexpr int64_t kNoHigh = INT64_MAX / 4;  // a band that is open above

  int64_t q_begin, q_end;
  int64_t k_begin, k_end;
  int64_t lo = kNoLow, hi = kNoHigh;

  bool contains(int64_t q, int64_t k) const {
    return q_begin <= q && q < q_end && k_begin <= k && k < k_end && lo <= k - q && k - q <= hi;
  }
  /// Number of visible positions, exact, in O(1).
  int64_t area() const;
  bool operator==(const Slice&) const = default;
};

/// A half-open range of positions.
struct Interval {
  int64_t begin, end;
  bool operator==(const Interval&) const = default;
};

/// The mask that one head sees: disjoint slices of a q_len x kv_len plane.
/// Tile edges restart at every break, so a document has the same tiles alone and packed.
struct HeadMask {
  int64_t q_len = 0, kv_len = 0;
  std::vector<Slice> slices;
  // Document boundaries on each axis, ascending; one comes twice, or stands at an end of the axis,
  // where a document is empty. n documents have n - 1.
  std::vector<int64_t> q_breaks, k_breaks;
  // Rows and keys of padding before the first sequence, which with_lengths() knows and slices do
  // not tell from a window: nothing of them is visible, and positions count from behind them.
  int64_t q_padding = 0, k_padding = 0;

  bool contains(int64_t q, int64_t k) const;
  /// Number of visible positions.
  int64_t area() const;
  /// Visible keys of row q as disjoint sorted intervals.
  std::vector<Interval> row(int64_t q) const;
  /// The part inside [q_begin, q_end) x [k_begin, k_end), in the rectangle's own coordinates.
  /// Throws Error when that leaves the plane.
  HeadMask crop(int64_t q_begin, int64_t q_end, int64_t k_begin, int64_t k_end) const;
  /// What both show. Throws Error when the planes differ in size.
  HeadMask intersect(const HeadMask& other) const;
  /// Throws Error naming two overlapping slices, or a slice or break outside the plane.
  void validate() const;
  bool operator==(const HeadMask&) const = default;
};

/// A sequence of a head: where it starts, and where its padding begins and ends. Padding is what
/// the mask says (HeadMask::q_padding), and what is found from the visible positions: rows at an
/// end that see no key, keys at an end that no row sees. So a sequence has the same tiles and
/// orders alone, packed, and padded to any length.
struct Sequence {
  int64_t q_begin = 0, k_begin = 0;  // in the plane
  /// Rows and keys between the padding. After the last visible position all is padding; before the
  /// first only where the rows cover the keys at the same positions (below), for rows of a chunk
  /// that continues a cache count their tiles from its first key, whatever their window shows.
  Interval q{}, k{};
  /// Rows at the positions of `k`, if rows see keys from the first of them to the last: rows beside
  /// them see keys of others, but have none of their own (padding that was hidden as keys only),
  /// and orders do not depend on them. Else all of `q`. Dropout counts from (core.begin, k.begin).
  Interval core{};
  bool operator==(const Sequence&) const = default;
};

/// The sequences of a head: its documents, empty ones too, when both axes have as many and no slice
/// joins two of them; else the whole plane is one. Dropout numbers them through the batch, so that
/// a document draws the same alone and packed.
std::vector<Sequence> sequences(const HeadMask& mask);

/// Where the padding of batch entries lies: behind their rows and keys, or before them.
enum class Side { right, left };

/// Which positions a problem computes: a name, its parameters, and one HeadMask per distinct
/// (batch, KV head). Query heads of a group share their KV head's mask.
class Mask {
 public:
  /// The same head mask for every batch entry and head. Both throw Error naming the argument that
  /// is out of range, or as HeadMask::validate().
  Mask(std::string name, std::string params_json, HeadMask head);
  /// `variant_of[b * kv_heads + h]` picks from `variants`; a dimension of size 1 is broadcast.
  Mask(std::string name, std::string params_json, std::vector<HeadMask> variants,
       std::vector<int32_t> variant_of, int64_t batch, int64_t kv_heads);

  const std::string& name() const { return content_->name; }
  const std::string& params_json() const { return content_->params_json; }
  int64_t q_len() const { return variants().front().q_len; }
  int64_t kv_len() const { return variants().front().kv_len; }
  /// Batch entries and KV heads that the mask tells apart; 1 fits any number.
  int64_t batch() const { return content_->batch; }
  int64_t kv_heads() const { return content_->kv_heads; }

  /// Distinct head masks; kernels and plans are built once for each.
  const std::vector<HeadMask>& variants() const { return content_->variants; }
  /// Throws Error when there is no such batch entry or head.
  int32_t variant(int64_t b, int64_t kv_head) const;
  const HeadMask& head(int64_t b, int64_t kv_head) const { return variants()[variant(b, kv_head)]; }
  /// Slices of one of variants(), which whoever has them shares with the mask.
  std::shared_ptr<const std::vector<Slice>> slices(size_t variant) const;
  /// On the host, most of it slices.
  int64_t bytes() const;

  /// Visible positions summed over `batch` and `q_heads`. FLOPs of a forward are
  /// 2 * area * (head_dim + head_dim_v), of a backward 2.5 times that.
  int64_t area(int64_t batch, int64_t q_heads, int64_t kv_heads) const;

  /// What both show. Throws Error when lengths, or batches or KV heads that are not 1, differ.
  Mask intersect(const Mask& other) const;
  /// Keys at or beyond key_lengths[b] are hidden (one length per batch entry). Rows beside those of
  /// the keys still see them: with_lengths() hides both.
  Mask with_key_lengths(std::span<const int64_t> key_lengths) const;
  /// Batch entry b shows q_lengths[b] rows and key_lengths[b] keys: the first ones, or with padding
  /// on the left the last ones. Rows beyond see nothing: O = 0, LSE = -inf, dQ = 0.
  /// As with_key_lengths(), throws Error naming the length that is out of range.
  Mask with_lengths(std::span<const int64_t> q_lengths, std::span<const int64_t> key_lengths,
                    Side side = Side::right) const;
  bool operator==(const Mask& other) const {
    return content_ == other.content_ || *content_ == *other.content_;
  }

 private:
  struct Content {
    std::string name, params_json;
    std::vector<HeadMask> variants;
    std::vector<int32_t> variant_of;  // [batch, kv_heads]
    int64_t batch, kv_heads;
    bool operator==(const Content&) const = default;
  };
  std::shared_ptr<const Content> content_;  // shared by copies: those in caches cost nothing
};

/// The patterns (predicates: docs/masks.md). Lengths are positions; causal masks are aligned
/// bottom-right when q_len != kv_len; document lengths may be 0 and sum to the length. All throw
/// Error(invalid_argument) naming the parameter that is out of range.
namespace masks {
using Lengths = std::span<const int64_t>;

Mask full(int64_t q_len, int64_t kv_len);
Mask causal(int64_t q_len, int64_t kv_len);
Mask full_sliding_window(int64_t q_len, int64_t kv_len, int64_t window);
Mask causal_sliding_window(int64_t q_len, int64_t kv_len, int64_t window);
Mask full_document(Lengths doc_lengths);
Mask causal_document(Lengths doc_lengths);
Mask share_question(Lengths doc_lengths);
Mask causal_blockwise(Lengths doc_lengths);
Mask global_sliding(int64_t len, int64_t global, int64_t window);
Mask prefix_lm_causal(int64_t len, int64_t prefix);
Mask prefix_lm_document(Lengths doc_lengths, Lengths prefix);  // one prefix, or one per document
Mask block_causal_document(Lengths doc_lengths, int64_t block);

/// A selected block (q_block, k_block) of one KV head.
struct Block {
  int64_t q_block, k_block;
};
/// Blocks of block_q x block_k positions, the last ones shorter. From a density, of 0 to 1, each
/// query block selects that share of the key blocks, one at least, by scores that follow from
/// `seed`, KV head and block (docs/masks.md).
Mask uniform_block_sparse(int64_t q_len, int64_t kv_len, int64_t block_q, int64_t block_k,
                          double density, uint64_t seed, int64_t kv_heads);
/// From lists, in any sequence, each block once; one list for each KV head.
Mask uniform_block_sparse(int64_t q_len, int64_t kv_len, int64_t block_q, int64_t block_k,
                          std::span<const std::vector<Block>> blocks_per_kv_head);
/// Edges run from 0 to the length, strictly increasing.
Mask variable_block_sparse(Lengths q_edges, Lengths k_edges, double density, uint64_t seed,
                           int64_t kv_heads);
Mask variable_block_sparse(Lengths q_edges, Lengths k_edges,
                           std::span<const std::vector<Block>> blocks_per_kv_head);

/// Selected blocks as arrays, a list for each batch entry and KV head; a dimension of 1 serves all.
/// In list l = b * kv_heads + h the queries of row r of blocks see the key blocks columns[i],
/// row_begin[l * (q_blocks + 1) + r] <= i < row_begin[l * (q_blocks + 1) + r + 1], in any sequence,
/// each once.
struct BlockLists {
  int64_t batch = 1, kv_heads = 1;
  std::span<const int64_t> row_begin;  // [batch, kv_heads, q_blocks + 1]
  std::span<const int32_t> columns;    // what no row names is not looked at
};
/// The masks above, of whose lists the parameters name the SHA-256 only. Throws Error that names
/// the array, the list and the row at fault.
Mask uniform_block_sparse(int64_t q_len, int64_t kv_len, int64_t block_q, int64_t block_k,
                          const BlockLists& lists);
Mask variable_block_sparse(Lengths q_edges, Lengths k_edges, const BlockLists& lists);

/// Packed sequences with their own query and key lengths: cu_seqlens run from 0 to the totals;
/// a causal sequence is aligned bottom-right.
Mask from_cu_seqlens(Lengths cu_seqlens_q, Lengths cu_seqlens_k, bool causal);
/// Packed sequences in which every query sees `left` keys before and `right` keys after its own
/// position, aligned bottom-right in each sequence; nullopt: all. A negative number hides the
/// nearest keys too. {0, length} is one sequence.
Mask windows(Lengths cu_seqlens_q, Lengths cu_seqlens_k, std::optional<int64_t> left,
             std::optional<int64_t> right);
/// Row-major q_len x kv_len, non-zero = visible.
Mask from_dense(std::span<const uint8_t> dense, int64_t q_len, int64_t kv_len);
/// FlashMask columns: key k is hidden from rows [lower_start[k], lower_end[k]) and
/// [upper_start[k], upper_end[k]); each span holds kv_len row numbers.
struct ColumnIntervals {
  std::vector<int64_t> lower_start, lower_end, upper_start, upper_end;
};
Mask from_column_intervals(const ColumnIntervals& columns, int64_t q_len);

/// The mask that JSON describes: whole, as to_json() writes it, or by "name" and "params" alone,
/// which are those of Mask::name() and params_json(). Sizes that the parameters leave open are
/// the problem's; other sizes than the problem's are found when a plan is made.
Mask make(const std::string& json, int64_t q_len, int64_t kv_len, int64_t kv_heads);

/// Names accepted by `--mask`, in the order of the table in docs/masks.md.
std::span<const char* const> names();
}  // namespace masks

/// Row-major 0/1 matrix; Error above 2^28 positions.
std::vector<uint8_t> to_dense(const HeadMask& mask);
/// As from_column_intervals() takes them; nullopt when some column hides more than two intervals of
/// rows.
std::optional<masks::ColumnIntervals> to_column_intervals(const HeadMask& mask);
/// nullopt unless the mask is a chain of full or bottom-right causal documents.
struct CuSeqlens {
  std::vector<int64_t> q, k;
  bool causal;
};
std::optional<CuSeqlens> to_cu_seqlens(const HeadMask& mask);
/// A Python function `def mask_mod(b, h, q_idx, kv_idx)` in FlexAttention's vocabulary.
std::string to_mask_mod(const Mask& mask);
/// The whole mask, slices among it (docs/masks.md).
std::string to_json(const Mask& mask);
/// What to_json() wrote. Throws Error naming the member at fault, or as HeadMask::validate().
Mask mask_from_json(const std::string& text);

/// Rows and columns of a tiling, cut anew at every break and where padding begins and ends. Edges:
/// 0 = first, length = last.
struct TileShape {
  int64_t q = 64, kv = 128;
  bool operator==(const TileShape&) const = default;
};

/// Consecutive non-empty tiles of one tile column (or row) that are cut by the same slices.
/// slice_count == 0: full, every position of every tile is visible; else partial.
struct TileRun {
  int32_t first, last;               // tiles [first, last)
  int32_t slice_begin, slice_count;  // into TileMap::slice_ids

  bool full() const { return slice_count == 0; }
};
/// Tiles that the runs hold.
int64_t count_tiles(std::span<const TileRun> runs);

/// Tiles [first, last) of an axis.
struct TileRange {
  int32_t first, last;
  int32_t count() const { return last - first; }
};

/// Which tiles of a HeadMask hold work. Built in time proportional to slices and runs, not area.
struct TileMap {
  TileShape shape;
  std::vector<int64_t> q_edges, kv_edges;  // tile t covers [edges[t], edges[t + 1])
  std::vector<int32_t> column_begin;       // kv_tiles() + 1 offsets into `columns`
  std::vector<TileRun> columns;            // per KV tile: runs of query tiles, ascending
  std::vector<int32_t> row_begin;          // q_tiles() + 1 offsets into `rows`
  std::vector<TileRun> rows;               // per query tile: runs of KV tiles, ascending
  std::vector<int32_t> slice_ids;          // lists referenced by runs
  std::vector<Sequence> sequences;         // the mask's, so that a plan knows them
  int64_t q_padding = 0, k_padding = 0;    // the mask's; a part has none

  TileMap(const HeadMask& mask, TileShape shape)
      : TileMap(mask, shape, verbatim::sequences(mask)) {}
  /// With other breaks in the mask than between its sequences.
  TileMap(const HeadMask& mask, TileShape shape, std::vector<Sequence> sequences);
  /// Of one of mask.variants(), whose slices it shares.
  TileMap(const Mask& mask, size_t variant, TileShape shape);

  /// The mask's; a part has none.
  const std::vector<Slice>& slices() const { return *slices_; }
  /// On the host, without slices().
  int64_t bytes() const;
  /// Tiles between which nothing is visible: a sequence without its padding, or padding.
  struct Part {
    TileRange q, kv;
    Interval core;  // rows, as Sequence::core; of padding all
  };
  /// Of all sequences, in turn.
  std::vector<Part> parts() const;
  /// The tiles of a part, counted from its start, as a map of one sequence. Their runs refer to the
  /// slice lists of the whole map, which are left out.
  TileMap part(const Part& part) const;
  /// Of a map of one sequence: query tiles of its core, and what a part of these and of its keys
  /// without padding would be: the tiles that choose an order.
  TileRange core_q_tiles() const;
  TileMap core() const;

  int32_t q_tiles() const { return static_cast<int32_t>(q_edges.size()) - 1; }
  int32_t kv_tiles() const { return static_cast<int32_t>(kv_edges.size()) - 1; }
  std::span<const TileRun> column(int32_t kv_tile) const;
  std::span<const TileRun> row(int32_t q_tile) const;
  /// Non-empty tiles, and those that need no masking.
  int64_t count() const;
  int64_t count_full() const;
  /// Whether the query tiles that see a KV tile come in four stretches or more, in the mean. Chains
  /// that pass over different rows drift apart.
  bool has_gaps() const;
  /// What is left of the visits when 64 rows leave out tiles of which they see nothing, and halves
  /// of 64 keys of which they see nothing and all of the other: where rectangles alone cut a
  /// quarter of the visits or more, else 1. Of a sample of query tiles.
  double shown_by_blocks() const;

 private:
  TileMap() = default;
  TileMap(const HeadMask& mask, TileShape shape, std::vector<Sequence> sequences,
          std::shared_ptr<const std::vector<Slice>> slices);

  std::shared_ptr<const std::vector<Slice>> slices_ = std::make_shared<std::vector<Slice>>();
};

}  // namespace verbatim
