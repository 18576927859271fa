// Block-sparse patterns from arrays, as callers on other sides of a C interface have them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "core/sha256.h"
#include "core/threads.h"
#include "mask/blocks.h"
#include "mask/distinct.h"
#include "mask/kept.h"
#include "mask/slice.h"
#include "verbatim/error.h"

namespace verbatim::masks {
namespace {

using Json = nlohmann::json;

constexpr size_t kColumnsWorthThreads = 16384;  // of all lists; fewer are read before threads wake

/// Where the rows of list `l` begin, one more than there are rows.
std::span<const int64_t> rows_of(const BlockLists& lists, const Grid& grid, int64_t list) {
  const auto size = grid.q.size();
  return lists.row_begin.subspan(static_cast<size_t>(list) * size, size);
}

std::span<const int32_t> columns_of(const BlockLists& lists, std::span<const int64_t> rows,
                                    size_t row) {
  return lists.columns.subspan(rows[row], rows[row + 1] - rows[row]);
}

std::string name_list(const BlockLists& lists, int64_t list) {
  return fmt::format("batch entry {}, KV head {}", list / lists.kv_heads, list % lists.kv_heads);
}

void check_sizes(const char* mask, const BlockLists& lists, const Grid& grid) {
  const auto check = [&](const char* argument, int64_t size) {
    if (size < 1 || size > kMaxHeads)
      refuse(mask, argument, fmt::to_string(size), fmt::format("1 to {}", kMaxHeads), "1");
  };
  check("batch", lists.batch);
  check("kv_heads", lists.kv_heads);
  const auto each = std::ssize(grid.q), given = std::ssize(lists.row_begin);
  if (given % each != 0 || given / each != lists.batch * lists.kv_heads)
    refuse(mask, "row_begin", fmt::format("{} offsets", lists.row_begin.size()),
           fmt::format("{} x {} x {}: batch entries, KV heads, rows of blocks and one more",
                       lists.batch, lists.kv_heads, each));
}

void check_offsets(const char* mask, const BlockLists& lists, std::span<const int64_t> rows,
                   int64_t list) {
  int64_t previous = 0;
  for (size_t row = 0; row < rows.size(); ++row) {
    if (previous <= rows[row] && rows[row] <= std::ssize(lists.columns)) {
      previous = rows[row];
      continue;
    }
    refuse(mask, fmt::format("row_begin of {}, row {}", name_list(lists, list), row),
           fmt::to_string(rows[row]), fmt::format("{} to {}", previous, lists.columns.size()));
  }
}

/// The key blocks of a row, ascending: as they are given, or else sorted in `scratch`.
std::span<const int32_t> ascending(std::span<const int32_t> columns,
                                   std::vector<int32_t>& scratch) {
  if (std::ranges::is_sorted(columns)) return columns;
  scratch.assign(columns.begin(), columns.end());
  std::ranges::sort(scratch);
  return scratch;
}

HeadMask head_of(const char* mask, const BlockLists& lists, const Grid& grid, int64_t list) {
  HeadMask head{grid.q.back(), grid.k.back(), {}, {}, {}};
  const auto rows = rows_of(lists, grid, list);
  head.slices.reserve(static_cast<size_t>(rows.back() - rows.front()));  // at most
  std::vector<int32_t> scratch;
  for (size_t row = 0; row + 1 < rows.size(); ++row) {
    const auto columns = ascending(columns_of(lists, rows, row), scratch);
    const auto fail = [&](std::string got, std::string expected) {
      refuse(mask, fmt::format("columns of {}, row {}", name_list(lists, list), row),
             std::move(got), std::move(expected));
    };
    if (columns.empty()) continue;
    for (const int32_t end : {columns.front(), columns.back()})
      if (end < 0 || end >= grid.k_blocks())
        fail(fmt::to_string(end), fmt::format("0 to {}", grid.k_blocks() - 1));
    const auto twice = std::ranges::adjacent_find(columns);
    if (twice != columns.end()) fail(fmt::format("{} twice", *twice), "every block once");
    append_row(head, grid, row, columns);
  }
  return head;
}

/// Whether two lists select the same blocks in the same sequence.
bool same(const BlockLists& lists, std::span<const int64_t> a, std::span<const int64_t> b) {
  const auto size_of = [](std::span<const int64_t> rows, size_t row) {
    return rows[row + 1] - rows[row];
  };
  for (size_t row = 0; row + 1 < a.size(); ++row)
    if (size_of(a, row) != size_of(b, row)) return false;
  const auto all = [&](std::span<const int64_t> rows) {
    return lists.columns.subspan(rows.front(), static_cast<size_t>(rows.back() - rows.front()));
  };
  return a.front() == b.front() || std::ranges::equal(all(a), all(b));
}

/// Of all that fixes the mask. Row offsets that differ by a constant are other ones.
std::string digest(const char* mask, const Json& params, const Grid& grid,
                   const BlockLists& lists) {
  Sha256 hash;
  hash.update(mask + params.dump());
  const std::array sizes{grid.q.back(), grid.k.back(), lists.batch, lists.kv_heads};
  hash.update(std::as_bytes(std::span(sizes)));
  hash.update(std::as_bytes(lists.row_begin));
  hash.update(std::as_bytes(lists.columns));
  return hash.hex();
}

Mask from_arrays(const char* mask, Json params, const Grid& grid, const BlockLists& lists) {
  check_sizes(mask, lists, grid);
  const std::string name = digest(mask, params, grid, lists);
  if (auto known = find_kept(name)) return *known;
  const int64_t count = lists.batch * lists.kv_heads;
  for (int64_t l = 0; l < count; ++l) check_offsets(mask, lists, rows_of(lists, grid, l), l);
  std::vector<int64_t> read;    // lists that equal none before them
  std::vector<size_t> read_as;  // of each list: the one in `read` that it equals
  for (int64_t l = 0; l < count; ++l) {
    const auto rows = rows_of(lists, grid, l);
    const auto known = std::ranges::find_if(
        read, [&](int64_t other) { return same(lists, rows, rows_of(lists, grid, other)); });
    read_as.push_back(known - read.begin());
    if (known == read.end()) read.push_back(l);
  }
  std::vector<HeadMask> made_of(read.size());
  for_each_in_parallel(lists.columns.size() < kColumnsWorthThreads ? 1 : core_count(),
                       std::ssize(read),
                       [&](int64_t i) { made_of[i] = head_of(mask, lists, grid, read[i]); });
  DistinctHeads heads;
  std::vector<int32_t> ids;
  for (HeadMask& head : made_of) ids.push_back(heads.id_of(std::move(head)));
  for (const size_t i : read_as) heads.variant_of.push_back(ids[i]);
  params["blocks"] = name;
  const Mask made(mask, params.dump(), std::move(heads.variants), std::move(heads.variant_of),
                  lists.batch, lists.kv_heads);
  keep(name, made);
  return made;
}

}  // namespace

Mask uniform_block_sparse(int64_t q_len, int64_t kv_len, int64_t block_q, int64_t block_k,
                          const BlockLists& lists) {
  return from_arrays(kUniform, {{"block_q", block_q}, {"block_k", block_k}},
                     uniform_grid(q_len, kv_len, block_q, block_k), lists);
}

Mask variable_block_sparse(Lengths q_edges, Lengths k_edges, const BlockLists& lists) {
  const Grid grid = variable_grid(q_edges, k_edges);
  return from_arrays(kVariable, {{"q_edges", grid.q}, {"k_edges", grid.k}}, grid, lists);
}

}  // namespace verbatim::masks
